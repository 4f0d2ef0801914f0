# Calls a unary method, a bidirectional stream, and a method that fails, through the proxy.
import os, sys
os.environ["https_proxy"] = os.environ["http_proxy"] = "http://" + sys.argv[1]
import grpc
credentials = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
with grpc.secure_channel("a.test:9001", credentials) as channel:
    hello = channel.unary_unary("/test.Echo/Hello")(b"hello", timeout=10).decode()
    both = channel.stream_stream("/test.Echo/Both")(iter([b"a", b"b", b"c"]), timeout=10)
    both = b",".join(both).decode()
    try:
        channel.unary_unary("/test.Echo/Fail")(b"", timeout=10)
    except grpc.RpcError as error:
        print(hello, both, error.code(), error.details())
