module peername/bench/intercept/goproxy

go 1.24.0

require github.com/elazarl/goproxy v1.9.2

require (
	golang.org/x/net v0.50.0 // indirect
	golang.org/x/text v0.34.0 // indirect
)
