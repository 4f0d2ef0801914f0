# A gRPC server with a unary method, a bidirectional stream, and a method that fails.
import sys
from concurrent import futures
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, call):
        def hello(request, context):
            return request
        def both(requests, context):
            yield from requests
        def fail(request, context):
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        return {
            "/test.Echo/Hello": grpc.unary_unary_rpc_method_handler(hello),
            "/test.Echo/Both": grpc.stream_stream_rpc_method_handler(both),
            "/test.Echo/Fail": grpc.unary_unary_rpc_method_handler(fail),
        }.get(call.method)

chain, key = (open(path, "rb").read() for path in sys.argv[1:3])
server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()])
server.add_secure_port("10.81.0.1:9001", grpc.ssl_server_credentials([(key, chain)]))
server.start()
server.wait_for_termination()
