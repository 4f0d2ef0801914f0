import java.io.InputStream;
import java.net.URL;

class Client {
    public static void main(String[] args) throws Exception {
        try (InputStream answer = new URL(args[0]).openStream()) {
            answer.transferTo(System.out);
        }
    }
}
