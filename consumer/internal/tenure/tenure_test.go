package tenure

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

const (
	resource = "route.billing.ORDERS"
	within   = 30 * time.Second
	patient  = 10 * time.Second // a lease that a busy machine does not lose
)

// works is what all instances of a test do, one at a time.
type works struct {
	t     *testing.T
	lease time.Duration
	all   []*instance
	began chan *instance
}

// instance has a membership on a link of its own, and a tenure at a time.
type instance struct {
	*Tenure
	works   *works
	name    string
	link    *natstest.Proxy
	members *fleet.Membership

	stop    context.CancelFunc // of Run
	had     chan bool          // from Run
	hold    chan struct{}      // a handler that runs; it ends when this is closed
	fenced  chan struct{}
	once    sync.Once              // of drain
	working atomic.Pointer[Tenure] // from its begin until it is fenced or all is settled
	settles atomic.Pointer[func(context.Context)]
	cut     bool // the drain was ended by its context
}

func join(t *testing.T, s *natstest.Server, w *works, name string) *instance {
	t.Helper()
	link := natstest.NewProxy(t, s.Addr())
	nc, err := nats.Connect(link.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{works: w, name: name, link: link, members: fleet.NewMembership(func(ctx context.Context) (*fleet.Fleet, error) {
		return fleet.Join(ctx, js, fleet.Config{Service: "relay", Instance: name, Lease: w.lease})
	})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.members.Run(ctx)
	}()
	t.Cleanup(func() {
		if i.stop != nil {
			i.end()
		}
		link.Resume()
		cancel()
		<-done
		nc.Close()
	})
	i.members.Need()
	w.all = append(w.all, i)
	return i
}

// run has the instance stand by anew.
func (i *instance) run() {
	ctx, stop := context.WithCancel(context.Background())
	i.hold, i.fenced, i.had, i.once, i.cut = make(chan struct{}), make(chan struct{}), make(chan bool, 1), sync.Once{}, false
	i.settles.Store(nil)
	var began atomic.Bool
	i.Tenure = New(context.Background(), Config{
		Membership: i.members, Instance: i.name, Resource: resource, Lease: i.works.lease,
		DrainTime: func() time.Duration { return time.Minute },
		Begin: func(fence uint64) {
			for _, o := range i.works.all {
				if before := o.working.Load(); before != nil && before.Has() {
					i.works.t.Errorf("%s begins while %s works", i.name, o.name)
				}
			}
			i.working.Store(i.Tenure)
			if fence == 0 || began.Swap(true) {
				i.works.t.Errorf("%s begins with fence %d, or for the second time", i.name, fence)
			}
			i.works.began <- i
		},
		Fence: func() {
			i.working.Store(nil)
			close(i.fenced)
		},
		End: i.drain,
	})
	i.stop = stop
	tenure, had := i.Tenure, i.had
	go func() { had <- tenure.Run(ctx) }()
}

// drain waits for the handler, and settles.
func (i *instance) drain() {
	i.once.Do(func() {
		i.Drain(context.Background(), func(ctx context.Context) {
			select {
			case <-i.hold:
			case <-ctx.Done():
				i.cut = true
			}
		}, func(ctx context.Context) {
			if settles := i.settles.Load(); settles != nil {
				(*settles)(ctx)
			}
			i.working.Store(nil)
		})
	})
}

// end ends it as its owner does, and tells whether it had the claim.
func (i *instance) end() bool {
	i.stop()
	select {
	case <-i.hold:
	default:
		close(i.hold)
	}
	i.drain()
	i.Close()
	had := <-i.had
	i.had <- had
	return had
}

func (w *works) next() *instance {
	w.t.Helper()
	select {
	case i := <-w.began:
		return i
	case <-time.After(within):
		w.t.Fatal("nobody has the claim")
		return nil
	}
}

func (w *works) eventually(what string, is func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, is)
}

// two are instances of which the first one has the claim, and the other one stands by.
func two(t *testing.T, lease time.Duration) (w *works, a, b *instance) {
	t.Helper()
	s := natstest.Start(t)
	w = &works{t: t, lease: lease, began: make(chan *instance, 10)}
	a, b = join(t, s, w, "a"), join(t, s, w, "b")
	a.run()
	w.next()
	b.run()
	w.eventually("both know the holder", func() bool {
		_, err := Trouble(b.members) // until it has a session
		return err == nil && b.Holder().Instance == "a" && a.Holder().Here && a.Has()
	})
	return w, a, b
}

// A holder that is ended has all settled before the next one begins.
func TestTenure_theNextOneBeginsOnceAllIsSettled(t *testing.T) {
	t.Parallel()
	w, a, b := two(t, patient)
	if _, _, _, stands := a.Standing(); stands || !a.Began() || a.Fence() == 0 {
		t.Errorf("a has it: %v, fence %d", stands, a.Fence())
	}
	if state, why, since, _ := b.Standing(); state != control.StateStandby || !strings.HasPrefix(why, "instance a has the route; ") || !since.IsZero() || b.Began() || b.Has() || b.Fence() != 0 {
		t.Errorf("b stands by: %s, %s, %v", state, why, since)
	}
	settles := func(ctx context.Context) {
		if len(w.began) > 0 || !a.Has() || ctx.Err() != nil {
			t.Error("it is over before all is settled")
		}
	}
	a.settles.Store(&settles)
	first := a.Fence()
	if !a.end() || a.cut {
		t.Errorf("it had the claim, and its handler was cut short: %v", a.cut)
	}
	if w.next() != b || b.Fence() <= first {
		t.Errorf("fence %d after %d", b.Fence(), first)
	}
	a.run()
	if a.end() {
		t.Error("it only stood by")
	}
}

// A holder whose link is dead ends its work before the next one begins, and waits for nothing. Afterwards it does not begin again.
func TestTenure_aLostLeaseFences(t *testing.T) {
	t.Parallel()
	w, a, b := two(t, fleet.MinLease)
	settles := func(ctx context.Context) {
		if ctx.Err() == nil {
			t.Error("it waits for settlements")
		}
	}
	a.settles.Store(&settles)
	a.link.Stall()
	if w.next() != b {
		t.Fatal("a has it again")
	}
	if had := <-a.had; !had || !a.cut || a.Has() {
		t.Errorf("it had the claim: %v; its handler was cut short: %v", had, a.cut)
	}
	<-a.fenced
	a.had <- true
	w.eventually("a has trouble", func() bool {
		state, why, since, _ := a.Standing()
		return state == control.StateStopped && strings.HasPrefix(why, "this instance could not renew its lease, ") && !since.IsZero()
	})
}

// A lease that is lost while somebody else drains the work ends that drain.
func TestTenure_aLeaseThatIsLostInADrain(t *testing.T) {
	t.Parallel()
	w, a, b := two(t, fleet.MinLease)
	a.stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		a.drain()
	}()
	a.link.Stall()
	if w.next() != b {
		t.Fatal("a has it again")
	}
	<-drained
	<-a.fenced
	if !a.cut {
		t.Error("the drain was not ended")
	}
}

// An order is followed by who has the claim and by who stands by, if it makes sense.
func TestTenure_Order(t *testing.T) {
	t.Parallel()
	w, a, b := two(t, patient)
	for _, c := range []struct {
		of       *instance
		from, to string
		standbys []string
		want     control.HandedOver
	}{
		{a, "b", "", []string{"b"}, control.HandedOver{Refused: "instance a has the route"}},
		{b, "b", "", nil, control.HandedOver{Refused: "instance a has the route"}},
		{a, "a", "a", []string{"b"}, control.HandedOver{Refused: "this instance already has the route"}},
		{a, "a", "c", []string{"b"}, control.HandedOver{Refused: "instance c does not stand by for the route"}},
		{a, "", "", nil, control.HandedOver{Refused: "no other instance stands by for the route"}},
		{b, "a", "", nil, control.HandedOver{}},
		{b, "a", "b", nil, control.HandedOver{}},
		{b, "a", "c", nil, control.HandedOver{Resting: true}},
	} {
		if got := c.of.Order(control.HandoverOrder{From: c.from, To: c.to}, c.standbys); got != c.want {
			t.Errorf("%s, from %q to %q: %+v", c.of.name, c.from, c.to, got)
		}
	}
	unsure := New(t.Context(), a.cfg) // it has not begun, or cannot say that it still has it
	if got := unsure.Order(control.HandoverOrder{From: "a"}, nil); !strings.HasPrefix(got.Refused, "this instance cannot prove") {
		t.Errorf("%+v", got)
	}
	unsure.Close()

	b.Keep()
	if got := a.Order(control.HandoverOrder{From: "a", To: "b"}, []string{"b"}); !got.Giving {
		t.Fatalf("%+v", got)
	}
	a.end()
	a.run()
	if w.next() != b {
		t.Error("a has it again")
	}
	// Nobody is to have what all leave to the others; who takes that back has it.
	w.eventually("a knows that b has it", func() bool { return a.Holder().Instance == "b" })
	a.Leave()
	b.end()
	w.eventually("nobody has it", func() bool { return a.Holder().Instance == "" })
	if state, why, _, _ := a.Standing(); state != control.StateStandby || why != "no instance has the route yet" {
		t.Errorf("%s, %s", state, why)
	}
	a.Keep()
	if w.next() != a {
		t.Error("b has it")
	}
}

// Without the fleet nobody has anything, and who waits for it can be ended.
func TestTenure_withoutAFleet(t *testing.T) {
	t.Parallel()
	m := fleet.NewMembership(func(context.Context) (*fleet.Fleet, error) { return nil, errors.New("no bucket") })
	tenure := New(t.Context(), Config{Membership: m, DrainTime: func() time.Duration { return 0 }})
	defer tenure.Close()
	if state, why, _, yes := tenure.Standing(); state != control.StateStandby || why != "no instance has the route yet" || !yes {
		t.Errorf("not joined yet: %s, %s", state, why)
	}
	ctx, cancel := context.WithCancel(t.Context())
	joining := make(chan struct{})
	go func() {
		defer close(joining)
		m.Run(ctx)
	}()
	m.Need()
	w := &works{t: t}
	w.eventually("it has trouble", func() bool { _, err := Trouble(m); return err != nil })
	if state, why, since, _ := tenure.Standing(); state != control.StateStopped || !strings.Contains(why, "no bucket") || since.IsZero() {
		t.Errorf("%s, %s, %v", state, why, since)
	}
	tenure.Leave()
	cancel()
	if tenure.Run(ctx) || tenure.Has() {
		t.Error("it had something")
	}
	<-joining
}
