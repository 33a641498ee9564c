package natsd

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

var (
	// ErrPortTaken is that somebody else listens on the address.
	ErrPortTaken = errors.New("the port is taken")
	// ErrNotLoopback is that the address can be reached from other hosts.
	ErrNotLoopback = errors.New("not a loopback address")
)

// freeAddress splits addr, which must be loopback, and binds it once to see that it is free. Port 0 becomes the server's
// own word for any port.
func freeAddress(key, addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%s: must be host:port (got %q)", key, addr)
	}
	if port, err = strconv.Atoi(p); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%s: the port must be a number from 0 to 65535 (got %q)", key, addr)
	}
	if host == "localhost" {
		host = "127.0.0.1" // one address of the two it may stand for
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return "", 0, fmt.Errorf("%s: %q: %w; use 127.0.0.1, or run a NATS server of your own and set nats.url", key, addr, ErrNotLoopback)
	}
	if port == 0 {
		return host, server.RANDOM_PORT, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, p))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return host, port, fmt.Errorf("%s: %s: %w; stop what listens there (another NATS server?) or choose another port", key, addr, ErrPortTaken)
	case err != nil:
		return "", 0, fmt.Errorf("%s: %w", key, err)
	}
	return host, port, l.Close()
}
