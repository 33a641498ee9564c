package embedded

import (
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// The tests of users have no port open.
func TestStart_doesNotListen(t *testing.T) {
	s := Start(t, nil)
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://")); err == nil {
		c.Close()
		t.Error("it listens")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}
