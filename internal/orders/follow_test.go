package orders

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// following is a follower and what it applied.
type following struct {
	*Follower
	t    *testing.T
	js   jetstream.JetStream
	stop func()

	mu      sync.Mutex
	applied []string
	log     bytes.Buffer
}

func (f *following) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func (f *following) said(what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Contains(f.log.String(), what)
}

func (f *following) has(order string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.applied, order)
}

func (f *following) eventually(what string, ok func() bool) {
	f.t.Helper()
	natstest.Eventually(f.t, what, ok, &f.applied, &f.log)
}

// joined are the orders that a new route would be given.
func (f *following) joined(route string) (list []string) {
	f.Join(route, func(o Order) { list = append(list, o.State+" "+string(o.Key)) })
	return list
}

func (f *following) bucket() *Bucket {
	f.t.Helper()
	b, err := Open(f.t.Context(), f.js, "", 0)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

func (f *following) give(o Order) uint64 {
	f.t.Helper()
	revision, err := f.bucket().Give(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	return revision
}

func follow(t *testing.T, js jetstream.JetStream) *following {
	t.Helper()
	f := &following{t: t, js: js}
	f.Follower = NewFollower(js, "relay", 0, slog.New(slog.NewTextHandler(f, nil)), func(o Order) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.applied = append(f.applied, fmt.Sprintf("%s %s%s", o.State, o.Route, o.Key))
	})
	ctx, cancel := context.WithCancel(t.Context())
	wait, err := f.Follow(t.Context(), ctx)
	if err != nil {
		t.Fatal(err)
	}
	f.stop = sync.OnceFunc(func() {
		cancel()
		wait()
	})
	t.Cleanup(f.stop)
	return f
}

// Orders that hold are applied before Follow returns, later ones within moments, and a route that is new gets those that hold.
func TestFollower_appliesOrders(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	first := follow(t, js)
	revision := first.give(Order{Route: "orders", State: Paused})
	first.eventually("it is followed", func() bool { _, last := first.Last(); return last >= revision && first.has("paused orders") })
	first.give(Order{Route: "orders", Key: []byte("eu"), State: Paused})
	first.eventually("also of a key", func() bool { return first.has("paused orderseu") })
	second := follow(t, js)
	if !second.has("paused orders") || !second.has("paused orderseu") {
		t.Errorf("an instance that begins later applied %q", second.applied)
	}
	if got := second.joined("orders"); len(got) != 2 {
		t.Errorf("a new route gets %q", got)
	}
	if paused, err := second.bucket().GiveToPausedKeys(t.Context(), Order{Route: "orders", State: Running}); err != nil || len(paused) != 1 {
		t.Errorf("keys: %v, %v", paused, err)
	}
	second.give(Order{Route: "orders", State: Running})
	second.eventually("they end", func() bool {
		return second.has("running orders") && second.has("running orderseu") && second.joined("orders") == nil
	})
	if _, err := second.bucket().Give(t.Context(), Order{Route: "a.b"}); err == nil {
		t.Error("an order for a route that cannot be was stored")
	}
}

// An order that is given is followed when Give returns; one that resumes a route ends the pauses of its keys.
func TestFollower_Give(t *testing.T) {
	t.Parallel()
	f := follow(t, natstest.Start(t).JetStream(t))
	over := make(chan struct{})
	for _, o := range []Order{{State: Paused}, {Key: []byte("eu"), State: Paused}, {State: Running}} {
		o.Route = "orders"
		if followed, err := f.Give(t.Context(), o, over); err != nil || !followed || !f.has(o.State+" orders"+string(o.Key)) {
			t.Errorf("%s: %v, %v", o.State, followed, err)
		}
	}
	if !f.has("running orderseu") {
		t.Error("the key is still paused")
	}
	if _, err := f.Give(t.Context(), Order{Route: "a.b", State: Paused}, over); err == nil {
		t.Error("an order for a route that cannot be was stored")
	}
	f.stop() // it follows nothing any more
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("no time left"))
	defer cancel()
	if _, err := f.Give(ctx, Order{Route: "orders", State: Paused}, over); err == nil || !strings.HasSuffix(err.Error(), "does not follow it yet: no time left") {
		t.Error(err)
	}
	close(over)
	if followed, err := f.Give(t.Context(), Order{Route: "orders", State: Paused}, over); err != nil || followed {
		t.Errorf("%v, %v", followed, err)
	}
}

// What holds is stored again when somebody deletes the bucket, or writes something else in the place of an order. An order that is deleted by itself
// ends.
func TestFollower_keepsOrders(t *testing.T) {
	t.Parallel()
	f := follow(t, natstest.Start(t).JetStream(t))
	f.give(Order{Route: "a", State: Paused})
	f.give(Order{Route: "b", State: Paused})
	f.eventually("both are followed", func() bool { return f.has("paused a") && f.has("paused b") })
	kv := f.bucket().KV
	if _, err := kv.PutString(t.Context(), "a", "no order"); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is stored again", func() bool {
		entry, err := kv.Get(t.Context(), "a")
		return err == nil && bytes.Contains(entry.Value(), []byte(Paused))
	})
	if err := kv.Delete(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	f.eventually("it ends", func() bool { return f.has("running b") && f.joined("b") == nil })
	before, _ := f.Last()
	if err := f.js.DeleteKeyValue(t.Context(), "RELAY_STATE"); err != nil {
		t.Fatal(err)
	}
	f.eventually("the order that holds is in a new bucket", func() bool {
		kv, err := f.js.KeyValue(t.Context(), "RELAY_STATE")
		if err != nil {
			return false
		}
		entry, err := kv.Get(t.Context(), "a")
		return err == nil && bytes.Contains(entry.Value(), []byte(Paused))
	})
	f.eventually("the new bucket is followed", func() bool { now, _ := f.Last(); return !now.Equal(before) })
	if f.has("running a") {
		t.Errorf("an order ended that nobody ended: %q", f.applied)
	}
}

// An order of a newer relay, and one that nobody can read, are left alone; the first is named for as long as it is there.
func TestFollower_ordersItDoesNotKnow(t *testing.T) {
	t.Parallel()
	f := follow(t, natstest.Start(t).JetStream(t))
	kv := f.bucket().KV
	for key, value := range map[string]string{
		"newer": fmt.Sprintf(`{"route":"newer","state":"paused","format":%d}`, Format+1), "other": `{"route":"elsewhere","state":"paused"}`, "broken": "{",
	} {
		if _, err := kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually("the newer one is named", func() bool {
		list := f.Unread()
		return len(list) == 1 && strings.HasPrefix(list[0], "order newer has format ")
	})
	f.eventually("the others are logged", func() bool { return f.said("order=other") && f.said("order=broken") })
	f.give(Order{Route: "newer", State: Paused})
	f.eventually("it is replaced", func() bool { return len(f.Unread()) == 0 && f.has("paused newer") })
	if len(f.applied) != 1 {
		t.Errorf("applied %q", f.applied)
	}
}

// While the bucket cannot be read that is said, with since when.
func TestObeyed_away(t *testing.T) {
	t.Parallel()
	var o obeyed
	if !o.lost(context.DeadlineExceeded) || o.lost(context.DeadlineExceeded) {
		t.Error("the begin is not told from what lasts")
	}
	if list := o.unread(); len(list) != 1 || !strings.Contains(list[0], "cannot read the orders of operators since") {
		t.Errorf("said: %q", list)
	}
	if !o.lost(nil) || len(o.unread()) != 0 {
		t.Error("it does not end")
	}
}
