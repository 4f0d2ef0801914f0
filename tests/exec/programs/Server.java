import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;

/** Tells each client the address it was accepted from. */
class Server {
    public static void main(String[] args) throws IOException {
        var listener = new ServerSocket(Integer.parseInt(args[0]), 100);
        while (true) {
            try (Socket socket = listener.accept()) {
                var peer = (InetSocketAddress) socket.getRemoteSocketAddress();
                var text = peer.getAddress().getHostAddress() + " " + peer.getPort();
                socket.getOutputStream().write(("peer " + text + "\n").getBytes());
                socket.getInputStream().read(new byte[100]);
            } catch (IOException gone) {
                System.err.println(gone);
            }
        }
    }
}
