// An ext_authz service made of Envoy's own types, for the tests.
//
// It prints each request: one CheckRequest a line, with the call's metadata `traceparent`. It reads what to answer from
// then on: one CheckResponse a line, or `error CODE MESSAGE` for a gRPC status, and prints `set`.
//
// Arguments: ADDRESS or unix:PATH; for TLS with client certificates also CERTIFICATE KEY CLIENTS_CA.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"sync"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

type server struct {
	auth.UnimplementedAuthorizationServer
	mutex    sync.Mutex
	response *auth.CheckResponse
	err      error
}

func (s *server) Check(ctx context.Context, request *auth.CheckRequest) (*auth.CheckResponse, error) {
	encoded, err := protojson.Marshal(request)
	if err != nil {
		log.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(encoded, &fields); err != nil {
		log.Fatal(err)
	}
	if traceparent := metadata.ValueFromIncomingContext(ctx, "traceparent"); traceparent != nil {
		fields["traceparent"] = traceparent
	}
	if encoded, err = json.Marshal(fields); err != nil {
		log.Fatal(err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Println(string(encoded))
	return s.response, s.err
}

func (s *server) set(line string) {
	response, err := &auth.CheckResponse{}, error(nil)
	if rest, isError := strings.CutPrefix(line, "error "); isError {
		var code codes.Code
		name, message, _ := strings.Cut(rest, " ")
		if err := code.UnmarshalJSON([]byte(name)); err != nil {
			log.Fatal(err)
		}
		response, err = nil, status.Error(code, message)
	} else if err := protojson.Unmarshal([]byte(line), response); err != nil {
		log.Fatal(err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.response, s.err = response, err
	fmt.Println("set")
}

func withTLS(certificate, key, authority string) grpc.ServerOption {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(authority)
	if err != nil {
		log.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(pem)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
	}))
}

func main() {
	network, address := "tcp", os.Args[1]
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		network, address = "unix", path
	}
	options := []grpc.ServerOption{}
	if len(os.Args) > 2 {
		options = append(options, withTLS(os.Args[2], os.Args[3], os.Args[4]))
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	service := &server{err: status.Error(codes.Unavailable, "nothing is set")}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			service.set(lines.Text())
		}
		os.Exit(0)
	}()
	grpcServer := grpc.NewServer(options...)
	auth.RegisterAuthorizationServer(grpcServer, service)
	fmt.Println("listening", listener.Addr())
	log.Fatal(grpcServer.Serve(listener))
}
