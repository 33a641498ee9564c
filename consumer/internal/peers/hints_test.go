package peers

import (
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/supervise"
)

// An instance hears what the others tell, and neither itself nor what is no hint.
func TestHints(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	own := Hints{Conn: s.Conn(t), Service: "relay", Instance: "a"}
	other := Hints{Conn: own.Conn, Service: "relay", Instance: "b"}
	type told struct {
		route, instance string
		restarts        int
	}
	heard := make(chan told, 10)
	stop, err := own.Hear(func(route, instance string, h supervise.Hint) { heard <- told{route, instance, h.Restarts} })
	if err != nil {
		t.Fatal(err)
	}
	own.Tell("billing", supervise.Hint{Restarts: 1})
	for _, data := range []string{"", "{", `{"restarts":2}`, `{"instance":"` + strings.Repeat("x", 1000) + `"}`} {
		if err := own.Conn.Publish("relay.ctl.peer.billing", []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	other.Tell("billing", supervise.Hint{Restarts: 3})
	select {
	case got := <-heard:
		if want := (told{"billing", "b", 3}); got != want {
			t.Errorf("heard %+v, want %+v", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is heard")
	}
	stop()
	other.Tell("billing", supervise.Hint{})
	if err := own.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(heard) > 0 {
		t.Errorf("heard %+v after the stop", <-heard)
	}
	own.Conn.Close()
	if _, err := own.Hear(nil); err == nil {
		t.Error("a connection that is closed hears")
	}
}
