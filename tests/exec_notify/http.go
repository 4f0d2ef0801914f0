// A web server that tells each client its address.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n", r.RemoteAddr)
	})
	fmt.Println(http.ListenAndServe(os.Args[1], nil))
}
