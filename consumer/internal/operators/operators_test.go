package operators

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/supervise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pause holds until the route is resumed, which is told once; a key is paused and resumed by itself.
func TestPause(t *testing.T) {
	t.Parallel()
	g := supervise.New(supervise.Options{Concurrency: 1, Timeout: time.Second})
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	var p Pause
	obey := func(o orders.Order, says string) {
		t.Helper()
		text.Reset()
		p.Obey(o, g, log)
		if got := text.String(); says == "" && got != "" || !strings.Contains(got, says) {
			t.Errorf("%+v: the log says %q", o, got)
		}
	}
	obey(orders.Order{State: orders.Running}, "")
	obey(orders.Order{State: orders.Paused, By: "me", Why: "audit"}, "route is paused by an operator")
	if o := p.Order(); o == nil || o.By != "me" || !g.Status().Paused {
		t.Errorf("it is not paused: %+v", o)
	}
	obey(orders.Order{State: orders.Running}, "route is resumed by an operator")
	if p.Order() != nil || g.Status().Paused {
		t.Error("it is still paused")
	}
	obey(orders.Order{State: orders.Paused, Key: []byte("eu"), By: "me", Why: "audit"}, "key is paused by an operator")
	if keys := g.KeyStates(9); len(keys) != 1 || keys[0].Key != "eu" || keys[0].State != supervise.Suspended || keys[0].Why != "audit (by me)" {
		t.Errorf("keys: %+v", keys)
	}
	if p.Order() != nil {
		t.Error("the route is paused by an order for a key")
	}
	obey(orders.Order{State: orders.Running, Key: []byte("eu")}, "key is resumed by an operator")
	obey(orders.Order{State: orders.Running, Key: []byte("us")}, "")
}

func TestReason(t *testing.T) {
	t.Parallel()
	if got := Reason(orders.Order{By: "me"}); got != "paused by an operator" {
		t.Error(got)
	}
	if got := Reason(orders.Order{Why: strings.Repeat("w", 9*control.MaxText)}); len(got) > 2*control.MaxText {
		t.Errorf("%d bytes", len(got))
	}
	if got := by(orders.Order{}); got != "" {
		t.Error(got)
	}
}

// What is ended is told as it was, and since when where that is known of what keeps messages from starting.
func TestWaits(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, c := range []struct {
		state string
		since bool
	}{{control.StateLimited, true}, {control.StateFlowing, false}} {
		book := limit.NewBook()
		w := Waits{
			Group: supervise.New(supervise.Options{Concurrency: 1, Timeout: time.Second}), Log: slog.New(slog.DiscardHandler), Own: book.Set("own", limit.Bounds{Rate: 1}),
			Condition: func(supervise.Status) (string, string, time.Time) { return c.state, "full", at },
		}
		w.Group.SuspendKey("eu", "paused")
		var key, was control.Woken
		w.End(orders.Order{Key: []byte("us")}, &key)
		if key.State != supervise.Flowing.String() {
			t.Errorf("a key that does not wait: %+v", key)
		}
		w.End(orders.Order{Trial: true}, &was)
		if was.State != c.state || was.Why != "full" || was.Suspended != 1 || was.Waiting != 0 || (was.Since != nil) != c.since || c.since && !was.Since.Equal(at) {
			t.Errorf("%s: %+v", c.state, was)
		}
		if len(w.Group.KeyStates(9)) > 0 && w.Group.KeyStates(9)[0].State == supervise.Suspended {
			t.Error("the key is still suspended")
		}
	}
}
