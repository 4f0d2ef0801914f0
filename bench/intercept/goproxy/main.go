// goproxy as a contestant of `make bench-intercept`.
//
// It is configured as its documentation and issues advise: an ECDSA CA, cached certificates, as many idle upstream
// connections as clients, resumed upstream TLS sessions, unchanged bodies, HTTP/2 to clients. Upstream certificates
// are verified with the roots of SSL_CERT_FILE.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/elazarl/goproxy"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "where clients connect")
	certificate := flag.String("ca", "", "the authority's certificate")
	key := flag.String("key", "", "the authority's key")
	version := flag.Bool("version", false, "print the versions")
	flag.Parse()
	if *version {
		fmt.Println(versions())
		return
	}

	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	check(err)
	action := &goproxy.ConnectAction{
		Action:    goproxy.ConnectMitm,
		TLSConfig: goproxy.TLSConfigFromCA(&pair),
	}
	proxy := goproxy.NewProxyHttpServer()
	proxy.OnRequest().HandleConnect(goproxy.FuncHttpsHandler(
		func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) { return action, host },
	))
	proxy.CertStore = &store{}
	proxy.KeepAcceptEncoding = true
	proxy.AllowHTTP2 = true
	proxy.Tr = &http.Transport{
		TLSClientConfig:     &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(4096)},
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 1024,
		DisableCompression:  true,
	}
	check(http.ListenAndServe(*listen, proxy))
}

// Single flight: a certificate is made once for each host, even if requests are concurrent.
type store struct {
	hosts sync.Map
}

type entry struct {
	once        sync.Once
	certificate *tls.Certificate
	err         error
}

func (s *store) Fetch(host string, sign func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	found, _ := s.hosts.LoadOrStore(host, &entry{})
	e := found.(*entry)
	e.once.Do(func() { e.certificate, e.err = sign() })
	return e.certificate, e.err
}

func versions() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/elazarl/goproxy" {
			return "goproxy " + module.Version + ", " + runtime.Version()
		}
	}
	return "goproxy, " + runtime.Version()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
