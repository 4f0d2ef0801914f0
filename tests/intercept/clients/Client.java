import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

class Client {
    public static void main(String[] args) throws Exception {
        URI proxy = URI.create(System.getenv("https_proxy"));
        HttpClient client = HttpClient.newBuilder()
            .proxy(ProxySelector.of(new InetSocketAddress(proxy.getHost(), proxy.getPort())))
            .build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(args[0])).build();
        var answer = client.send(request, BodyHandlers.ofString());
        System.out.println(answer.statusCode() + " " + answer.body());
    }
}
