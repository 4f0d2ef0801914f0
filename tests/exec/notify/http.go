// A web server that sends each client its address.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "peer %s\n", r.RemoteAddr)
	})
	listener, err := net.Listen(os.Args[1], os.Args[2])
	if err == nil {
		err = http.Serve(listener, nil)
	}
	fmt.Println(err)
}
