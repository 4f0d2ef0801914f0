import java.net.URI;

class Get {
    public static void main(String[] args) throws Exception {
        System.out.write(URI.create("https://a.test/echo").toURL().openStream().readAllBytes());
        System.out.flush();
    }
}
