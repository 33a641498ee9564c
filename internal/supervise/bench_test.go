package supervise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench runs a group against a handler written as a function, and plays JetStream: what is given back, or is to be
// retried, comes again when it is due, and what was let go comes again after ackWait. It checks all the while that the
// group keeps its bounds and settles each delivery once.
type bench struct {
	t *testing.T
	g *Group

	mu       sync.Mutex
	began    time.Time
	starts   []start
	started  map[uint64]int
	outcomes map[uint64][]Outcome
	events   []Event
	failed   error
	escaped  error
	closed   bool
	returns  map[uint64]int
	// remembered counts the failures that were stored while the message stayed, which takes as long as slowly.
	remembered map[uint64]int
	slowly     time.Duration
	pending    map[*testWork]struct{} // deliveries that were not settled
	// most is what the group may have: more than it is configured for while what a change found still runs.
	most       Options
	child      string // that all keys share, after a change
	live       map[*Message]time.Time
	faults     []string
	substitute substituteBench
	// redeliver is off when a test looks at outcomes only.
	redeliver bool
	// onStart and onEnd are told of each start and each return, under mu.
	onStart func(m *Message, number int)
	onEnd   func(ctx context.Context, m *Message, v Verdict, returned bool)
}

const ackWait = 30 * time.Second

type start struct {
	seq     uint64
	key     string
	attempt int
	at      time.Duration // since the bench began
	child   string
}

// handlerFunc is what the tests write. n counts the starts of this message.
type handlerFunc func(ctx context.Context, m *Message, n int) Verdict

type testWork struct {
	b        *bench
	m        *Message
	handle   handlerFunc
	attempts int // as recorded when it arrived
	first    time.Time
	again    func(at time.Time) // delivers it again; nil while it is here
	called   *time.Time
}

func (w *testWork) Do(ctx context.Context, number int, c any) (v Verdict) {
	b := w.b
	b.check()
	b.mu.Lock()
	name, _ := c.(string)
	b.starts = append(b.starts, start{w.m.Sequence, w.m.Key, number, time.Since(b.began), name})
	b.started[w.m.Sequence]++
	n := b.started[w.m.Sequence]
	if b.child != "" && name != b.child {
		b.fault("message %d starts with %q after the change to %q", w.m.Sequence, name, b.child)
	}
	deadline, _ := ctx.Deadline()
	b.live[w.m] = deadline.Add(hangGrace)
	b.count()
	if b.onStart != nil {
		b.onStart(w.m, number)
	}
	b.mu.Unlock()
	returned := false
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.live, w.m)
		if b.onEnd != nil {
			b.onEnd(ctx, w.m, v, returned)
		}
	}()
	v = w.handle(ctx, w.m, n)
	returned = true
	return v
}

// count sees to it that no more handlers run than may; those that were given up do not count.
func (b *bench) count() {
	n := 0
	for _, until := range b.live {
		if time.Now().Before(until) {
			n++
		}
	}
	if n > b.most.Concurrency {
		b.fault("%d handlers run, concurrency is %d", n, b.most.Concurrency)
	}
}

func (b *bench) fault(format string, args ...any) {
	if len(b.faults) < 10 {
		b.faults = append(b.faults, fmt.Sprintf("%v: %s", time.Since(b.began), fmt.Sprintf(format, args...)))
	}
}

// check looks at the bounds of the group.
func (b *bench) check() {
	g := b.g
	t := g.lock()
	stash, running, kids := t.stash.usage, t.slots.running.n+t.slots.overdue.n, t.nursery.kids
	t.unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if stash.messages > b.most.StashMessages || stash.bytes > b.most.StashBytes {
		b.fault("%+v in a stash of %d and %d", stash, b.most.StashMessages, b.most.StashBytes)
	}
	if running > b.most.Concurrency {
		b.fault("%d slots of %d in use", running, b.most.Concurrency)
	}
	if kids > b.most.Config.MaxChildren {
		b.fault("%d children, at most %d may be", kids, b.most.Config.MaxChildren)
	}
}

func (w *testWork) Settle(o Outcome) {
	b := w.b
	b.check()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, pending := b.pending[w]; !pending {
		b.fault("message %d was settled twice: %+v", w.m.Sequence, o)
	}
	delete(b.pending, w)
	b.outcomes[w.m.Sequence] = append(b.outcomes[w.m.Sequence], o)
	m := &Message{Key: w.m.Key, Sequence: w.m.Sequence, Size: w.m.Size, Attempts: o.Attempts, FirstFailure: o.FirstFailure, Alone: w.m.Alone}
	due := o.Due
	switch o.Action {
	case RetryLater:
		if o.Due.IsZero() {
			b.fault("message %d is to be retried at no time", w.m.Sequence)
		}
		b.returns[w.m.Sequence] = 0
	case GiveBack: // what happened to it here is forgotten
		if o.Attempts != w.attempts || !o.FirstFailure.Equal(w.first) {
			b.fault("message %d is given back and its attempts are lost: %d, recorded are %d", w.m.Sequence, o.Attempts, w.attempts)
		}
		b.returns[w.m.Sequence]++
	case LetGo:
		m.Attempts, m.FirstFailure = w.attempts, w.first
		due = time.Now().Add(ackWait)
	default:
		return
	}
	if n := len(b.outcomes[w.m.Sequence]); n > 20_000 {
		b.fault("message %d came and went %d times: %+v", w.m.Sequence, n, o)
		return
	}
	if !b.redeliver || b.closed {
		return
	}
	m.Returns = b.returns[w.m.Sequence]
	b.add(m, w.handle)
	came := false
	again := func() {
		b.mu.Lock()
		if came {
			b.mu.Unlock()
			return
		}
		came = true
		closed := b.closed
		if closed {
			delete(b.pending, m.Work.(*testWork))
		}
		b.mu.Unlock()
		if !closed {
			b.g.Deliver(m)
		}
	}
	time.AfterFunc(max(0, time.Until(due)), again)
	w.again = func(at time.Time) { time.AfterFunc(max(100*time.Millisecond, time.Until(at)), again) }
	if w.called != nil {
		w.again(*w.called)
	}
}

func (w *testWork) Away() Away { return w }

// CallBack is asked of what was given back, maybe by another goroutine than the one that gives it back, and before.
func (w *testWork) CallBack(due time.Time) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.called = &due
	if w.again != nil {
		w.again(due)
	}
}

// Remember is told of failures that stay here.
func (w *testWork) Remember(o Outcome, stored func(bool)) {
	b := w.b
	b.mu.Lock()
	w.attempts, w.first = o.Attempts, o.FirstFailure
	b.remembered[w.m.Sequence]++
	slow := b.slowly
	b.mu.Unlock()
	if slow == 0 {
		stored(true)
		return
	}
	time.AfterFunc(slow, func() { stored(true) })
}

// add makes the delivery of m.
func (b *bench) add(m *Message, handle handlerFunc) {
	w := &testWork{b: b, m: m, handle: handle, attempts: m.Attempts, first: m.FirstFailure}
	m.Work = w
	b.pending[w] = struct{}{}
}

func newBench(t *testing.T, opts Options) *bench {
	b := &bench{
		t: t, began: time.Now(), started: map[uint64]int{}, outcomes: map[uint64][]Outcome{}, returns: map[uint64]int{}, remembered: map[uint64]int{},
		pending: map[*testWork]struct{}{}, live: map[*Message]time.Time{}, redeliver: true,
	}
	opts.Event = func(e Event) {
		b.check()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, e)
	}
	opts.Failed = func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = err
	}
	opts.Escalate = func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.escaped = err
	}
	if opts.Retry.Jitter == nil {
		opts.Retry.Jitter = new(0.0)
	}
	if opts.Config.Restart.Jitter == nil {
		opts.Config.Restart.Jitter = new(0.0)
	}
	b.most = opts.withDefaults()
	b.g = New(opts)
	return b
}

// change gives the group other options, while nothing else is under way.
func (b *bench) change(rev Revision, child string) (interrupt func() int) {
	synctest.Wait()
	rev.Retry.Jitter, rev.Config.Restart.Jitter = new(0.0), new(0.0)
	to := rev.Options.withDefaults()
	b.mu.Lock()
	was := b.most
	b.most = to
	b.most.Concurrency = max(to.Concurrency, was.Concurrency)
	b.most.StashMessages, b.most.StashBytes = max(to.StashMessages, was.StashMessages), max(to.StashBytes, was.StashBytes)
	b.most.Config.MaxChildren = max(to.Config.MaxChildren, was.Config.MaxChildren)
	if f := to.Fallback; f != nil {
		b.most.Fallback = &Fallback{Concurrency: max(f.Concurrency, was.Fallback.Concurrency)}
	}
	if rev.Ended != nil {
		b.child = child
	}
	b.mu.Unlock()
	interrupt = b.g.Change(rev)
	b.mu.Lock() // what reads the options under it comes after the change
	defer b.mu.Unlock()
	return interrupt
}

// settle has the bounds of now hold, for all that does not run since before a change. Nothing else may be under way.
func (b *bench) settle() {
	t := b.g.lock()
	to, running, kids := b.g.opts, t.slots.running.n+t.slots.overdue.n, t.nursery.kids
	t.unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most.StashMessages, b.most.StashBytes = to.StashMessages, to.StashBytes
	b.most.Concurrency, b.most.Config.MaxChildren = max(to.Concurrency, min(running, b.most.Concurrency)), max(to.Config.MaxChildren, min(kids, b.most.Config.MaxChildren))
}

// close ends the group and reports what went wrong; every test calls it inside its bubble.
func (b *bench) close() {
	b.t.Helper()
	b.end()
	for _, f := range b.faults {
		b.t.Error(f)
	}
	if b.t.Failed() && len(b.starts) < 200 {
		b.log()
	}
}

// end closes the group. Then nothing may be left that was not settled.
func (b *bench) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.g.Close(ctx)
	synctest.Wait()
	time.Sleep(100 * time.Hour) // what was to be delivered again is not
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.pending {
		b.fault("message %d was not settled", w.m.Sequence)
	}
}

func (b *bench) send(handle handlerFunc, key string, seqs ...uint64) {
	b.deliver(handle, key, false, seqs)
}

func (b *bench) sendReplayed(handle handlerFunc, key string, seqs ...uint64) {
	b.deliver(handle, key, true, seqs)
}

func (b *bench) deliver(handle handlerFunc, key string, replayed bool, seqs []uint64) {
	var ms []*Message
	b.mu.Lock()
	for _, seq := range seqs {
		m := &Message{Key: key, Sequence: seq, Size: 100, Replayed: replayed}
		b.add(m, handle)
		ms = append(ms, m)
	}
	b.mu.Unlock()
	b.g.Deliver(ms...)
}

// seq are the numbers from a to b.
func seq(a, b uint64) (list []uint64) {
	for ; a <= b; a++ {
		list = append(list, a)
	}
	return list
}

func (b *bench) allStarts() []start {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]start(nil), b.starts...)
}

func (b *bench) startsOf(seq uint64) (at []time.Duration) {
	for _, s := range b.allStarts() {
		if s.seq == seq {
			at = append(at, s.at)
		}
	}
	return at
}

// order lists the sequences in the order of their starts.
func (b *bench) order() (seqs []uint64) {
	for _, s := range b.allStarts() {
		seqs = append(seqs, s.seq)
	}
	return seqs
}

func (b *bench) wantStarts(seq uint64, want ...time.Duration) {
	b.t.Helper()
	if got := b.startsOf(seq); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("message %d started at %v, want %v", seq, got, want)
	}
}

func (b *bench) wantOrder(want ...uint64) {
	b.t.Helper()
	if got := b.order(); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("started %v, want %v", got, want)
	}
}

// final is the outcome that ended the message, or the last one.
func (b *bench) final(seq uint64) (Outcome, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	os := b.outcomes[seq]
	if len(os) == 0 {
		return Outcome{}, false
	}
	o := os[len(os)-1]
	return o, o.Action == AckMessage || o.Action == DropMessage || o.Action == DeadLetter
}

func (b *bench) wantFinal(seq uint64, action Action) Outcome {
	b.t.Helper()
	o, ended := b.final(seq)
	if !ended || o.Action != action {
		b.t.Errorf("message %d: final outcome %+v (ended %v), want action %d", seq, o, ended, action)
	}
	return o
}

// wantLast checks the last outcome of a message that is to come again.
func (b *bench) wantLast(seq uint64, action Action) Outcome {
	b.t.Helper()
	o, ended := b.final(seq)
	if ended || o.Action != action {
		b.t.Errorf("message %d: last outcome %+v (ended %v), want action %d", seq, o, ended, action)
	}
	return o
}

// keys is how many the group remembers.
func (b *bench) keys() int {
	t := b.g.lock()
	defer t.unlock()
	return len(t.keys)
}

// state of a key; a key that is not remembered flows.
func (b *bench) state(key string) State {
	for _, k := range b.g.KeyStates(1 << 20) {
		if k.Key == key {
			return k.State
		}
	}
	return Flowing
}

func (b *bench) wantState(key string, want State) {
	b.t.Helper()
	if got := b.state(key); got != want {
		b.t.Errorf("key %s is %v, want %v", key, got, want)
	}
}

// moves lists the states that a key, or the route for "route", went to.
func (b *bench) moves(key string) (to []State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if e.Key == key && !e.Route || e.Route && key == "route" {
			to = append(to, e.To)
		}
	}
	return to
}

// delays lists the waits of a key, or of the route.
func (b *bench) delays(key string) (ds []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if (e.Key == key && !e.Route || e.Route && key == "route") && e.To == Waiting {
			ds = append(ds, e.Delay)
		}
	}
	return ds
}

func (b *bench) log() {
	for _, e := range b.events {
		b.t.Logf("event %+v", e)
	}
	for _, s := range b.starts {
		b.t.Logf("start %+v", s)
	}
}

var (
	errDown = errors.New("down")
	ok      = Verdict{Kind: Ack}
	failed  = Verdict{Kind: Retry, Err: errDown}
)

func succeed(context.Context, *Message, int) Verdict { return ok }

func failing(context.Context, *Message, int) Verdict { return failed }

func panicking(context.Context, *Message, int) Verdict { panic("boom") }

// takes is a handler that succeeds after d.
func takes(d time.Duration) handlerFunc {
	return func(context.Context, *Message, int) Verdict {
		time.Sleep(d)
		return ok
	}
}

// obeying is a handler that hangs until its context ends.
func obeying(ctx context.Context, _ *Message, _ int) Verdict {
	<-ctx.Done()
	return failed
}

// first is a handler that does something else the first n times.
func first(n int, do, then handlerFunc) handlerFunc {
	return func(ctx context.Context, m *Message, try int) Verdict {
		if try <= n {
			return do(ctx, m, try)
		}
		return then(ctx, m, try)
	}
}
func snoozing(d time.Duration) handlerFunc {
	return func(context.Context, *Message, int) Verdict { return Verdict{Kind: Snooze, Delay: d} }
}

func retryAfter(d time.Duration) handlerFunc {
	return func(context.Context, *Message, int) Verdict {
		return Verdict{Kind: Retry, Err: errDown, Delay: d, Pause: true}
	}
}

func stopping(context.Context, *Message, int) Verdict { return Verdict{Kind: Ack, StopChild: true} }

// fallbackConcurrency is how many messages the fallback may have; 0: there is none.
func (o Options) fallbackConcurrency() int {
	if o.Fallback == nil {
		return 0
	}
	return o.Fallback.Concurrency
}
