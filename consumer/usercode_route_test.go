package consumer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/relaytest"
	"github.com/relaymq/relay/supervisor"
)

// A Backoff.Func is code of a user where delays are needed, under the group's lock. One that panics is refused, with its key and for
// which count; one that works is not called any more once relay runs.
func TestRoute_backoffFuncThatPanics(t *testing.T) {
	t.Parallel()
	route := func(f func(int) time.Duration) consumer.Route {
		return consumer.Route{
			Name: "billing", Subjects: []string{"orders.>"}, Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
				if m.Attempt == 1 {
					panic("oh")
				}
				return nil
			}),
			Retry:      consumer.Retry{Backoff: supervisor.Backoff{Func: f}},
			Supervisor: supervisor.Config{Restart: supervisor.Backoff{Func: f}},
		}
	}
	err := route(func(n int) time.Duration {
		if n == 3 {
			panic("no such delay")
		}
		return time.Millisecond
	}).Validate()
	for _, key := range []string{"retry.", "supervisor.restart."} {
		if want := key + "func: it panics for n = 3: no such delay"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a function that panics: %v, want %q", err, want)
		}
	}
	running := false
	r := relaytest.Start(t, consumer.Config{}, route(func(int) time.Duration {
		if running {
			panic("called while relay runs")
		}
		return time.Millisecond
	}))
	running = true
	r.Publish("orders.eu", "").Want(relaytest.Done)
}

// none is an error whose methods cannot be called on nil.
type none struct{ why string }

func (n *none) Error() string { return n.why }

// A handler that stops its child with an error that is a nil pointer does not bring down the group: its key goes on with a fresh child.
func TestRoute_stopChildOfATypedNil(t *testing.T) {
	t.Parallel()
	var why *none
	made := make(chan string, 8)
	r := relaytest.Start(t, consumer.Config{}, consumer.Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Factory: func(key string) (consumer.Handler, error) {
			made <- key
			return consumer.HandlerFunc(func(context.Context, *consumer.Msg) error { return consumer.StopChild(why) }), nil
		},
		Supervisor: supervisor.Config{Restart: supervisor.Backoff{Min: 10 * time.Millisecond}},
	})
	for range 2 {
		r.Publish("orders.eu", "").Want(relaytest.Done)
	}
	if n := len(made); n < 2 {
		t.Errorf("%d children were made, want a fresh one for the second message", n)
	}
}
