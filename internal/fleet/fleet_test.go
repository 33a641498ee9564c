package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// instance is one of the fleet, on a link of its own that can be stalled.
type instance struct {
	*Fleet
	link *natstest.Proxy
	stop func() // gives the session back and waits
	die  func() // cuts the link for good: to the others it is a kill
}

func join(t *testing.T, s *natstest.Server, name string) *instance {
	t.Helper()
	return joinFor(t, s, name, MinLease)
}

func joinFor(t *testing.T, s *natstest.Server, name string, lease time.Duration) *instance {
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
	f, err := Join(t.Context(), js, Config{Service: "relay", Instance: name, Version: "v1", Lease: lease, State: func() json.RawMessage {
		return json.RawMessage(`{"routes":["orders"]}`)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	i := &instance{Fleet: f, link: link}
	i.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		nc.Close()
	})
	i.die = sync.OnceFunc(func() {
		link.Stall()
		nc.Close()
		i.stop()
	})
	t.Cleanup(i.stop)
	return i
}

// until waits for what the fleet comes to know.
func (i *instance) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	over := time.After(30 * time.Second)
	for {
		changed := i.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-over:
			members, whole := i.Members()
			t.Fatalf("%s: not in 30 s; members %v (whole: %v)", what, members, whole)
		}
	}
}

func (i *instance) living() (names string) {
	members, _ := i.Members()
	for _, m := range members {
		if m.Gone.IsZero() {
			names += m.Instance
		}
	}
	return names
}

func TestFleet_membersComeAndGo(t *testing.T) {
	s := natstest.Start(t)
	a, b, c := join(t, s, "a"), join(t, s, "b"), join(t, s, "c")
	a.until(t, "all three", func() bool { return a.living() == "abc" })
	members, whole := a.Members()
	if !whole || members[1].Version != "v1" || string(members[1].State) != `{"routes":["orders"]}` {
		t.Errorf("whole %v, members %+v", whole, members)
	}

	b.stop()
	a.until(t, "b stopped", func() bool { return a.living() == "ac" })
	c.die()
	a.until(t, "c died", func() bool { return a.living() == "a" })
	members, _ = a.Members()
	if len(members) != 3 || members[1].Gone.IsZero() || members[2].Gone.IsZero() {
		t.Errorf("those that are gone are not told of: %+v", members)
	}
	b2 := join(t, s, "b")
	a.until(t, "b is back", func() bool { return a.living() == "ab" })
	if members, _ := a.Members(); len(members) != 3 {
		t.Errorf("b is told of twice: %+v", members)
	}
	b2.until(t, "b's own session", func() bool { _, err := b2.Trouble(); return err == nil && b2.Valid() })
}

// The answer to a write was lost, and the watch had not told of it when the next one was refused: the instance took its own record for
// somebody else's word that its session is over, and gave it up.
func TestSession_regressionAWatchThatLagsEndsNoSession(t *testing.T) {
	f, err := Join(t.Context(), natstest.Start(t).JetStream(t), Config{Service: "relay", Instance: "a"})
	if err != nil {
		t.Fatal(err)
	}
	// The watch does not run: it lags for ever.
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	own := &session{id: newID(), now: f.now, ctx: ctx, end: end}
	if err := f.write(ctx, own); err != nil {
		t.Fatal(err)
	}
	lost := &session{id: own.id, now: own.now, revision: own.revision, ctx: ctx, end: end} // the write whose answer is lost
	if err := f.write(ctx, lost); err != nil {
		t.Fatal(err)
	}
	if err := f.write(ctx, own); err == nil || errors.Is(err, errTaken) {
		t.Errorf("the write after a lost answer: %v", err)
	}
	select {
	case <-f.renewal:
	default:
		t.Error("it is not written again at once")
	}
	if err := f.write(ctx, own); err != nil {
		t.Errorf("the one after it: %v", err)
	}
	if err := f.kv.Purge(t.Context(), sessionKey(own.id)); err != nil {
		t.Fatal(err)
	}
	if err := f.write(ctx, own); !errors.Is(err, errTaken) {
		t.Errorf("after it was ended from outside: %v", err)
	}
}

// The server ends a session up to a second late. Who waits for it ends it, unless it was renewed.
func TestSession_regressionOneThatIsOverIsEndedByWhoWaits(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	// No watch runs: what b sees is said here.
	a, b := open(t, js, "a"), open(t, js, "b")
	old := a.session.revision
	if err := a.write(a.session.ctx, a.session); err != nil {
		t.Fatal(err)
	}
	sees := func(revision uint64, ago time.Duration) {
		b.view.claims["x"] = owner{Session: a.session.id}
		b.view.sessions[a.session.id] = Member{Session: a.session.id, revision: revision, seen: time.Now().Add(-ago)}
		b.endOver(t.Context(), "x")
	}
	sees(a.session.revision, MinLease/2)
	sees(old, MinLease)
	if err := a.write(a.session.ctx, a.session); err != nil {
		t.Errorf("it was ended, although it was renewed: %v", err)
	}
	sees(a.session.revision, MinLease)
	if err := a.write(a.session.ctx, a.session); !errors.Is(err, errTaken) {
		t.Errorf("it was over, and is written after it was ended: %v", err)
	}
}

// open is a fleet with a session, of which nothing runs.
func open(t *testing.T, js jetstream.JetStream, name string) *Fleet {
	t.Helper()
	f, err := Join(t.Context(), js, Config{Service: "relay", Instance: name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	t.Cleanup(func() { end(nil) })
	f.session = &session{id: newID(), now: f.now, ctx: ctx, end: end}
	if err := f.write(ctx, f.session); err != nil {
		t.Fatal(err)
	}
	return f
}

// An instance waited for the end of a session that was its own.
func TestHold_regressionItsOwnFormerSessionIsOver(t *testing.T) {
	f := open(t, natstest.Start(t).JetStream(t), "a")
	f.view.whole, f.view.since = true, time.Now()
	f.view.claims["x"] = owner{Session: f.session.id}
	f.view.sessions[f.session.id] = Member{}
	f.view.claims["y"] = owner{Session: "other"}
	f.view.sessions["other"] = Member{}
	f.without(ErrLost)
	if _, may := f.mayTake("x"); may {
		t.Error("it has no session, and may take something")
	}
	f.session = open(t, f.js, "a").session
	if _, may := f.mayTake("x"); !may {
		t.Error("its own former session is not over")
	}
	if _, may := f.mayTake("y"); may {
		t.Error("another instance has it")
	}
}

// The server of a watch's consumer was killed, and nothing said so: the watch waited for 4 s for what did not come.
func TestSession_regressionAWatchThatTellsNothingBeginsAnew(t *testing.T) {
	f := open(t, natstest.Start(t).JetStream(t), "a")
	s := f.session
	f.view.whole, f.view.since = true, time.Now()
	now := time.Now().Add(2 * MinLease)
	anew := func(after time.Duration) bool {
		t.Helper()
		if err := f.write(s.ctx, s); err != nil {
			t.Fatal(err)
		}
		now = now.Add(after)
		f.checkWatch(s, now)
		select {
		case <-f.rewatch:
			return true
		default:
			return false
		}
	}
	for range 3 { // it lags by one write
		f.view.sessions[s.id] = Member{revision: s.revision}
		if anew(MinLease / 2) {
			t.Fatal("a watch that tells of the writes begins anew")
		}
	}
	for range 10 { // many writes in a moment
		if anew(0) {
			t.Fatal("a watch begins anew that had no time to tell of a write")
		}
	}
	if !anew(MinLease / 2) {
		t.Error("a watch that tells nothing does not begin anew")
	}
}

func TestJoin_refusesALeaseThatTheServerWouldCut(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 2500 * time.Millisecond, -time.Second} {
		if _, err := Join(t.Context(), nil, Config{Lease: lease}); err == nil {
			t.Errorf("%v was taken", lease)
		}
	}
}

// work notes who works at the same time.
type work struct {
	t       *testing.T
	running atomic.Int32
	mu      sync.Mutex
	fences  []uint64
	who     []string
	started chan string
}

func newWork(t *testing.T) *work { return &work{t: t, started: make(chan string, 100)} }

func (w *work) nextNumber() int {
	n, err := strconv.Atoi(w.next())
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *work) hold(ctx context.Context, i *instance, name string) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Hold(ctx, "route.orders", nil, func(ctx context.Context, l Lease) {
			fence := l.Fence
			if n := w.running.Add(1); n != 1 {
				w.t.Errorf("%d hold it at the same time", n)
			}
			w.mu.Lock()
			if n := len(w.fences); n > 0 && fence <= w.fences[n-1] {
				w.t.Errorf("fence %d after %v", fence, w.fences)
			}
			w.fences, w.who = append(w.fences, fence), append(w.who, name)
			w.mu.Unlock()
			w.started <- name
			<-ctx.Done()
			w.running.Add(-1)
		})
	}()
	return func() { <-done }
}

func (w *work) next() string {
	w.t.Helper()
	select {
	case name := <-w.started:
		return name
	case <-time.After(30 * time.Second):
		w.t.Fatal("nobody took it in 30 s")
		return ""
	}
}

func TestHold_oneAtATimeAndTheNextAfterADeath(t *testing.T) {
	s := natstest.Start(t)
	all := map[string]*instance{"a": join(t, s, "a"), "b": join(t, s, "b"), "c": join(t, s, "c")}
	w := newWork(t)
	ctx, cancel := context.WithCancel(t.Context())
	for name, i := range all {
		defer w.hold(ctx, i, name)()
	}
	defer cancel()

	first := w.next()
	if h, ok := all[first].Holder("route.orders"); ok && !h.Mine {
		t.Errorf("holder %+v in the eyes of %s", h, first)
	}
	died := time.Now()
	all[first].die()
	second := w.next()
	if took := time.Since(died); second == first || took < MinLease-250*time.Millisecond-MinLease/4 {
		t.Errorf("%s after %s, %v after its death: before the lease was over", second, first, took)
	}
	all[second].until(t, "the others see the holder", func() bool {
		h, ok := all[second].Holder("route.orders")
		return ok && h.Instance == second && h.Mine
	})

	// A stalled link: the holder must stop by itself before somebody else begins, which hold checks.
	all[second].link.Stall()
	third := w.next()
	if third == second {
		t.Errorf("%s had it again while its link was stalled", third)
	}
	all[second].link.Resume()
}

func TestHold_theNextOneAtOnceAfterACleanEnd(t *testing.T) {
	s := natstest.Start(t)
	a, b := join(t, s, "a"), join(t, s, "b")
	w := newWork(t)
	ctxA, cancelA := context.WithCancel(t.Context())
	ctxB, cancelB := context.WithCancel(t.Context())
	waitA, waitB := w.hold(ctxA, a, "a"), w.hold(ctxB, b, "b")
	cancel, other, fleet := cancelA, "b", a
	if w.next() == "b" {
		cancel, other, fleet = cancelB, "a", b
	}
	fleet.until(t, "its own claim", func() bool { h, ok := fleet.Holder("route.orders"); return ok && h.Mine })
	cancel()
	if got := w.next(); got != other {
		t.Errorf("%s took it", got)
	}
	cancelA()
	cancelB()
	waitA()
	waitB()
}

// The answer to the write of a claim, or to its deletion, was lost with the connection, and the instance waited for it for as long as a lease.
func TestHold_regressionTheAnswerToAClaimIsLost(t *testing.T) {
	const lease = 20 * time.Second
	s := natstest.Start(t)
	a := joinFor(t, s, "a", lease)
	a.until(t, "its own session", func() bool { return a.living() == "a" })
	w := newWork(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written := make(chan struct{}, 100)
	there := s.Conn(t)
	if _, err := there.Subscribe("$KV."+Bucket("relay")+"."+claimKey("route.orders"), func(*nats.Msg) { written <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := there.Flush(); err != nil {
		t.Fatal(err)
	}
	loseAnswer := func() {
		<-written // the answer is on its way, as slowly
		a.link.Cut()
		a.link.Delay(0)
	}
	a.link.Delay(300 * time.Millisecond)
	wait := w.hold(ctx, a, "a")
	loseAnswer()
	began := time.Now()
	w.next()
	if took := time.Since(began); took > lease/2 {
		t.Errorf("it was taken in %v", took)
	}
	for len(written) > 0 {
		<-written // what was asked again
	}

	a.link.Delay(300 * time.Millisecond)
	cancel()
	loseAnswer()
	began = time.Now()
	wait()
	if took := time.Since(began); took > lease/2 {
		t.Errorf("it was given back in %v", took)
	}
}

func TestHold_regressionADeletedSessionEndsItsWork(t *testing.T) {
	s := natstest.Start(t)
	a := join(t, s, "a")
	cause := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Hold(ctx, "x", nil, func(ctx context.Context, _ Lease) {
			select {
			case cause <- nil:
			default:
			}
			<-ctx.Done()
			select {
			case cause <- context.Cause(ctx):
			default:
			}
		})
	}()
	<-cause
	if err := a.js.DeleteStream(t.Context(), "KV_RELAY_FLEET"); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; !errors.Is(err, ErrLost) {
		t.Errorf("ended with %v", err)
	}
	a.until(t, "no session", func() bool { return !a.Valid() })
	if since, err := a.Trouble(); err == nil || since.IsZero() {
		t.Errorf("nothing is said: %v since %v", err, since)
	}
	cancel()
	<-done
}

// Whatever stalls: never two at a time, and always somebody in the end.
func TestHold_neverTwoUnderRandomStalls(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := natstest.Start(t)
	var all []*instance
	w := newWork(t)
	ctx, cancel := context.WithCancel(t.Context())
	for n := range 4 {
		i := join(t, s, fmt.Sprint(n))
		all = append(all, i)
		defer w.hold(ctx, i, fmt.Sprint(n))()
	}
	defer cancel()
	for range 3 {
		holder := all[w.nextNumber()]
		holder.until(t, "its own claim", func() bool { h, ok := holder.Holder("route.orders"); return ok && h.Mine })
		holder.link.Stall()
		other := all[rnd.IntN(len(all))]
		if other != holder {
			other.link.Stall()
		}
		next := w.next()
		w.started <- next // for the next round
		holder.link.Resume()
		other.link.Resume()
	}
	t.Logf("seed %d: held by %v", seed, w.who)
}

func TestHold_regressionABucketThatWasMadeAnewGivesGreaterFences(t *testing.T) {
	s := natstest.Start(t)
	a := join(t, s, "a")
	w := newWork(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer w.hold(ctx, a, "a")()
	defer cancel()
	w.next()
	if err := a.js.DeleteStream(t.Context(), "KV_RELAY_FLEET"); err != nil {
		t.Fatal(err)
	}
	w.next() // hold compares the fences
	a.until(t, "the holder", func() bool { h, ok := a.Holder("route.orders"); return ok && h.Mine })
}
