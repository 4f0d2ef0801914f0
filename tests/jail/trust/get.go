package main

import (
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get("https://a.test/echo")
	if err != nil {
		panic(err)
	}
	io.Copy(os.Stdout, answer.Body)
}
