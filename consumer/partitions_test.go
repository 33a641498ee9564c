package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// divisions is a service of several instances with one route that is divided, each on a link of its own. Its handlers hold what they see against what the
// order of keys permits.
type divisions struct {
	*world
	route Route

	mu      sync.Mutex
	who     map[string]int            // starts by instance
	where   map[string]map[string]int // starts by instance, by key
	starts  map[uint64]int            // by sequence
	running map[string]int            // by key
	done    map[string]uint64         // the last sequence that was handled, by key
	fails   map[uint64]int            // attempts that are to fail, by sequence
	waited  time.Duration
	takes   time.Duration
	faults  []string
}

func newDivisions(t *testing.T, count int) *divisions {
	d := &divisions{
		world: newWorld(t, natstest.WithListen()), who: map[string]int{}, where: map[string]map[string]int{}, starts: map[uint64]int{}, running: map[string]int{}, done: map[string]uint64{},
		fails: map[uint64]int{},
		route: Route{
			Name: "billing", Subjects: []string{"orders.*.paid", "orders.*.sent"}, Key: "{2}", Order: supervisor.OrderKey, Partitions: count, Start: StartAll, AckWait: 20 * time.Second,
			Retry: Retry{Backoff: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}},
		},
	}
	if _, err := d.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Duplicates: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *divisions) fault(format string, args ...any) {
	if len(d.faults) < 10 {
		d.faults = append(d.faults, fmt.Sprintf(format, args...))
	}
}

func (d *divisions) handler(instance string) Handler {
	return HandlerFunc(func(ctx context.Context, m *Msg) error {
		key := strings.Split(m.Subject, ".")[1]
		d.mu.Lock()
		d.starts[m.Sequence]++
		d.who[instance]++
		if d.where[instance] == nil {
			d.where[instance] = map[string]int{}
		}
		d.where[instance][key]++
		d.waited = max(d.waited, time.Since(m.Time))
		if m.Sequence < d.done[key] {
			d.fault("%s starts %d of %s after %d was done", instance, m.Sequence, key, d.done[key])
		}
		if m.Route != "billing" || m.Stream != "ORDERS" || m.Consumer != "billing" || m.Fence == 0 {
			d.fault("route %s, stream %s, consumer %s, fence %d", m.Route, m.Stream, m.Consumer, m.Fence)
		}
		if want := fmt.Sprint(key); string(m.Data) != want || m.Header.Get("Kept") != "1" || len(m.Header) != 2 {
			d.fault("message %d of %s has data %q and headers %v", m.Sequence, m.Subject, m.Data, m.Header)
		}
		fails := d.fails[m.Sequence] > 0
		d.fails[m.Sequence]--
		d.running[key]++
		takes := d.takes
		d.mu.Unlock()
		var err error
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			err = ctx.Err()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running[key]--
		if fails {
			return fmt.Errorf("told to fail")
		}
		if err == nil {
			d.done[key] = max(d.done[key], m.Sequence)
		}
		return err
	})
}

func (d *divisions) instance(name string) (r *Relay, link *natstest.Proxy, stop func() error) {
	d.t.Helper()
	link = natstest.NewProxy(d.t, d.s.Native().Addr().String())
	nc, err := nats.Connect(link.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		d.t.Fatal(err)
	}
	route := d.route
	route.Handler = d.handler(name)
	r, err = New(nc, Config{Instance: name, Logger: slog.New(slog.NewTextHandler(testLog{d.t}, nil)).With("at", name), Drain: 5 * time.Second}, route)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		nc.Close()
		return err
	})
	d.t.Cleanup(func() {
		link.Resume()
		_ = stop()
	})
	return r, link, stop
}

// send publishes messages of random keys. They have the ids of those that were sent before, which the user's stream has forgotten by then.
func (d *divisions) send(n int) {
	d.t.Helper()
	time.Sleep(150 * time.Millisecond)
	for i := range n {
		key := fmt.Sprintf("k%d", rand.IntN(40))
		m := &nats.Msg{Subject: "orders." + key + []string{".paid", ".sent"}[rand.IntN(2)], Data: []byte(key), Header: nats.Header{"Kept": {"1"}, "Nats-Msg-Id": {fmt.Sprint(i)}}}
		if _, err := d.js.PublishMsg(d.t.Context(), m); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *divisions) handled() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.starts)
}

// check tells what was wrong, and how often messages were started more than once.
func (d *divisions) check() (twice int) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.faults {
		d.t.Error(f)
	}
	for _, n := range d.starts {
		twice += n - 1
	}
	return twice
}

// Three instances share the partitions of a route: each key is handled in order, by one of them, as what it was when it was published.
func TestPartitions_inOrderOverInstances(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 8)
	d.takes = time.Millisecond
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b", "c"} {
		all[name], _, _ = d.instance(name)
	}
	d.shared(all, 8)
	for range 5 {
		d.send(100)
	}
	d.eventually("all are handled", func() bool { return d.handled() == 500 })
	if twice := d.check(); twice > 0 {
		t.Errorf("%d were started twice", twice)
	}
	t.Logf("%v, none waited for more than %v", d.who, d.waited)
	keys := map[string]int{}
	for name, list := range d.where {
		if name != "a" && name != "b" && name != "c" || len(list) == 0 {
			t.Errorf("instance %s has had %d keys", name, len(list))
		}
		for key := range list {
			keys[key]++
		}
	}
	for key, n := range keys {
		if n != 1 {
			t.Errorf("%d instances had key %s", n, key)
		}
	}
}

// shared waits until each instance has its share.
func (d *divisions) shared(all map[string]*Relay, count int) {
	d.t.Helper()
	d.eventually("each has its share", func() bool {
		sum := 0
		for _, r := range all {
			v := r.divided.get("billing")
			if v == nil {
				return false
			}
			g := v.newest().Generation
			most, has := r.fairPart(g)
			if len(v.streams) != 1 || g.Count != count || has > most || most != (count+len(all)-1)/len(all) {
				return false
			}
			sum += has
		}
		return sum == count
	})
}
