package placing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world is a server with the streams ORDERS for orders.>, and QUEUE for queue.>, a work queue.
type world struct {
	t    *testing.T
	js   jetstream.JetStream
	asks atomic.Int64
	*Placing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, js: natstest.Start(t).JetStream(t)}
	w.Placing = New(Config{
		JS:      w.js,
		Attempt: func(ctx context.Context, f func(context.Context) error) error { w.asks.Add(1); return f(ctx) },
	})
	w.stream("ORDERS", jetstream.LimitsPolicy, "orders.>")
	w.stream("QUEUE", jetstream.WorkQueuePolicy, "queue.>")
	return w
}

func (w *world) stream(name string, retention jetstream.RetentionPolicy, subjects ...string) {
	w.t.Helper()
	_, err := w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects, Retention: retention})
	if err != nil {
		w.t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want it to say %q", err, part)
		}
	}
}

// route has a durable of its own.
func route(name string, subjects ...string) Route {
	return Route{Name: name, Durable: name, Subjects: subjects, Instances: "all"}
}

func on(rt Route, durable string) Route {
	rt.Durable = durable
	return rt
}

func TestStreamOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	named := route("named", "orders.a")
	named.Stream = "NAMED" // nobody is asked whether it exists
	for want, rt := range map[string]Route{"ORDERS": route("a", "orders.a", "orders.b"), "QUEUE": route("b", "queue.>"), "NAMED": named} {
		if stream, err := w.StreamOf(t.Context(), rt); err != nil || stream != want {
			t.Errorf("%s: %q %v", want, stream, err)
		}
	}
	_, err := w.StreamOf(t.Context(), route("c", "orders.a", "queue.a"))
	wantError(t, err, "subjects are on two streams, ORDERS and QUEUE: make it two routes")
	_, err = w.StreamOf(t.Context(), route("d", "new.a"))
	var none *NoStream
	if !errors.As(err, &none) || none.Subject != "new.a" || !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("error %v", err)
	}
	wantError(t, err, `no stream holds subject "new.a": add one under streams`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.StreamOf(ctx, route("e", "orders.a"))
	wantError(t, err, `looking for the stream of "orders.a": `, context.Canceled.Error())
}

// Whoever only says what relay would do finds subjects on streams that somebody makes before relay starts.
func TestStreamOf_whatIsAssumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if w.Plans() || w.Assumed("NEW") != nil {
		t.Error("nothing was assumed yet")
	}
	w.Assume([]jetstream.StreamConfig{{Name: "NEW", Subjects: []string{"new.*"}}})
	if stream, err := w.StreamOf(t.Context(), route("a", "new.a")); err != nil || stream != "NEW" {
		t.Errorf("%q %v", stream, err)
	}
	if c := w.Assumed("NEW"); !w.Plans() || c == nil || c.Name != "NEW" || w.Assumed("ORDERS") != nil {
		t.Errorf("assumed: %v", c)
	}
	_, err := w.StreamOf(t.Context(), route("b", "new.>"))
	wantError(t, err, "no stream holds subject")
	_, err = w.StreamOf(t.Context(), route("c", "new.a", "orders.a"))
	wantError(t, err, "subjects are on two streams, NEW and ORDERS")
}

func TestPlace_routesThatShareADurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	places, without, faults := w.Place(t.Context(), []Route{
		on(route("a", "orders.a.>"), "shared"), route("b", "orders.b"), on(route("q", "queue.a"), "shared"), on(route("c", "orders.a.*.x", "orders.c"), "shared"),
	}, Once)
	if len(without) > 0 || len(faults) > 0 {
		t.Fatalf("without %v, faults %v", without, faults)
	}
	var said []string
	for _, at := range places {
		said = append(said, fmt.Sprint(at.Stream, "/", at.Durable, at.Routes))
	}
	if want := []string{"ORDERS/shared[0 3]", "ORDERS/b[1]", "QUEUE/shared[2]"}; !slices.Equal(said, want) {
		t.Errorf("places %q, want %q", said, want)
	}
}

// A message is for one route.
func TestPlace_faults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leased := on(route("c", "orders.c"), "shared")
	leased.Leased, leased.Instances = true, "one"
	for name, c := range map[string]struct {
		routes []Route
		want   []string // of the faults of the last route
	}{
		"another durable": {
			[]Route{route("a", "orders.>", "orders.b.c"), route("b", "orders.b.*")},
			[]string{`subjects: "orders.b.*" overlaps "orders.b.c" of route a on the same stream`, `subjects: "orders.b.*" overlaps "orders.>" of route a on the same stream`},
		},
		"equal":         {[]Route{on(route("a", "orders.a.*"), "shared"), on(route("b", "orders.a.*"), "shared")}, []string{`subjects: "orders.a.*" overlaps "orders.a.*" of route a`}},
		"more specific": {[]Route{on(route("a", "orders.a.*"), "shared"), on(route("b", "orders.a.x"), "shared")}, nil},
		"instances":     {[]Route{on(route("a", "orders.a"), "shared"), leased}, []string{"instances: is one, and all of route a, which has the same durable: make them the same"}},
		"two streams":   {[]Route{route("a", "orders.a"), route("b", "queue.a", "orders.b")}, []string{"subjects are on two streams, QUEUE and ORDERS"}},
	} {
		_, without, faults := w.Place(t.Context(), c.routes, Once)
		if len(faults) != len(c.want) || len(without) > 0 {
			t.Errorf("%s: without %v, faults %v", name, without, faults)
			continue
		}
		for i, f := range faults {
			if f.Route != c.routes[1].Name {
				t.Errorf("%s: a fault of route %s", name, f.Route)
			}
			wantError(t, f.Err, c.want[i])
		}
	}
}

// A route without a stream does not keep the others from their places. The server is asked once more for its stream, which it may not have heard of yet. So a
// route with partitions has none when one is there by now: it was to be divided before.
func TestPlace_routesWithoutAStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := route("late", "orders.late")
	late.Divided = true
	var tried []string
	try := func(ctx context.Context, what string, f func(context.Context) error) error {
		err := f(ctx)
		if err != nil {
			tried = append(tried, what)
		}
		return err
	}
	places, without, faults := w.Place(t.Context(), []Route{route("none", "none.a"), route("a", "orders.a"), late}, try)
	if len(places) != 1 || !slices.Equal(places[0].Routes, []int{1}) || len(faults) > 0 {
		t.Fatalf("places %v, faults %v", places, faults)
	}
	if len(without) != 2 || without[0].Route != 0 || without[1].Route != 2 {
		t.Fatalf("without %v", without)
	}
	wantError(t, without[0].Err, `no stream holds subject "none.a"`)
	wantError(t, without[1].Err, `no stream holds subject "orders.late"`)
	if n := w.asks.Load(); n != 4 || !slices.Equal(tried, []string{"the stream of route none"}) {
		t.Errorf("asked %d times, failed: %q", n, tried)
	}

	// It is there when the server is asked again.
	made := make(chan error, 1)
	again := New(w.cfg)
	again.cfg.Attempt = func(ctx context.Context, f func(context.Context) error) error {
		err := f(ctx)
		if err != nil {
			_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: "SOON", Subjects: []string{"soon.>"}})
			made <- err
		}
		return err
	}
	places, without, _ = again.Place(t.Context(), []Route{route("soon", "soon.a")}, Once)
	if err := <-made; err != nil || len(places) != 1 || places[0].Stream != "SOON" || len(without) > 0 {
		t.Errorf("places %v, without %v, %v", places, without, err)
	}
}
