package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"
)

// ErrHandlerPanic is what errors.Is finds in a [PanicError].
var ErrHandlerPanic = errors.New("handler panicked")

// ErrHandlerHung says that a handler ignored the end of its context.
var ErrHandlerHung = errors.New("handler ignored its timeout")

var errGone = errors.New("the child is gone")

// PanicError is the stop of a child by a panic, by runtime.Goexit, or by its own word ([Verdict.Crashed]).
type PanicError struct {
	Value  any // nil for Goexit
	Goexit bool
	Exit   error  // why the child is gone; nil for a panic and Goexit
	Stack  []byte // at most 16 KiB; none with Exit
	text   string // of Value, cut; its methods are not called again
}

// No Unwrap: a handler that panics with context.Canceled was not cancelled.
func (e *PanicError) Error() string {
	if e.Exit != nil {
		return e.Exit.Error()
	}
	if e.Goexit {
		return "handler called runtime.Goexit"
	}
	return "panic: " + e.text
}

// Is makes a PanicError an ErrHandlerPanic, unless it has Exit.
func (e *PanicError) Is(target error) bool { return target == ErrHandlerPanic && e.Exit == nil }

// describe formats a panic's value, whose own Error or String method may panic again.
func describe(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T (its text panicked too)", value)
		}
	}()
	if err, ok := value.(error); ok {
		return err.Error()
	}
	return fmt.Sprint(value)
}

const (
	maxStack     = 16 << 10
	maxPanicText = 4 << 10
)

// newPanicError asks value for its text where the panic was recovered: value's methods are foreign code, and whoever reads
// the error later may hold a lock.
func newPanicError(value any) *PanicError {
	text := describe(value)
	return &PanicError{Value: value, Stack: cutStack(), text: text[:min(len(text), maxPanicText)]}
}

func cutStack() []byte {
	stack := debug.Stack()
	return stack[:min(len(stack), maxStack)]
}

// run is one attempt, and its context.
type run struct {
	k     *key
	m     *Message
	child *child
	// Under the group's lock:
	place     node[run] // among those that run
	number    int32     // of the attempt; the message's own count may change when the run is given up
	epoch     int32     // of the route, when it began
	round     int32     // of the route, of which it is a probe; 0: it is none
	noticed   int32     // how many milliseconds after its deadline it was cancelled: the process may have stood still. Below 0: before it
	past      past      // of its message, when it began
	probe     bool      // of the key
	again     bool      // its key hung before
	cancelled bool      // by a stop of the child or by the end of the group: it spends no attempt
	late      bool      // it ended after its child had
	hung      bool      // settled and given up; only its goroutine remains
	term      uint8     // its timeout; see terms.go
	// Under mu:
	cause cause
	mu    sync.Mutex
	done  chan struct{}
	after *afterFunc // the last one; mostly there is one at most

	deadline time.Time
}

// A run is part of what each message allocates, whose size is rounded up to steps of 32 bytes; see TestRun_isSmall.

// cause is why a run's context ended.
type cause uint8

const (
	goesOn cause = iota
	cancelled
	timedOut
)

var causes = [...]error{nil, context.Canceled, context.DeadlineExceeded}

// wasLate notes how long after its deadline r is cancelled.
func (r *run) wasLate(by time.Duration) {
	r.noticed = int32(max(math.MinInt32, min(by.Milliseconds(), math.MaxInt32)))
}

// hangs is from when on r counts as hung, once it is overdue.
func (r *run) hangs() time.Time {
	return r.deadline.Add(time.Duration(r.noticed)*time.Millisecond + hangGrace)
}

var _ context.Context = (*run)(nil)

// A run is its own context, without the timer, the goroutine and the four allocations of context.WithDeadline: the
// group's one timer ends it.

func (r *run) Deadline() (time.Time, bool) { return r.deadline, true }
func (r *run) Value(key any) any           { return r.child.values.of(key) }

func (r *run) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		if r.cause != goesOn {
			close(r.done)
		}
	}
	return r.done
}

func (r *run) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return causes[r.cause]
}

type afterFunc struct {
	f    func()
	next *afterFunc
}

// AfterFunc lets the context package derive contexts without a goroutine each.
func (r *run) AfterFunc(f func()) (stop func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != goesOn {
		go f()
		return func() bool { return false }
	}
	a := &afterFunc{f, r.after}
	r.after = a
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for p := &r.after; *p != nil; p = &(*p).next {
			if *p == a {
				*p = a.next
				return true
			}
		}
		return false
	}
}

// cancel ends the context; the first cause stays.
func (r *run) cancel(why cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != goesOn {
		return
	}
	r.cause = why
	if r.done != nil {
		close(r.done)
	}
	for a := r.after; a != nil; a = a.next {
		go a.f()
	}
	r.after = nil
}

// result is how a run ended.
type result struct {
	verdict Verdict
	crash   error // a *PanicError: the child stopped
}

// attempt calls the handler. It does not return after runtime.Goexit.
func (r *run) attempt(res *result) {
	finished := false
	defer func() {
		if finished {
			return
		}
		if value := recover(); value != nil {
			res.crash = newPanicError(value)
		} else {
			res.crash = &PanicError{Goexit: true, Stack: cutStack()}
		}
	}()
	res.verdict = r.m.Work.Do(r, int(r.number), r.child.value)
	if v := res.verdict; v.Crashed && v.Kind == Retry {
		res.crash = &PanicError{Exit: cmp.Or(v.Err, errGone)}
	}
	finished = true
}

// work runs r and whatever may start after it, until there is nothing.
func (g *Group) work(r *run) {
	var res result
	// runtime.Goexit unwinds this goroutine whatever is deferred; another one goes on in its place.
	goexit := true
	defer func() {
		if goexit {
			if next := g.complete(r, &res); next != nil {
				go g.work(next)
			}
		}
	}()
	for r != nil {
		res = result{}
		if g.prepare(r, &res) {
			r.attempt(&res)
		}
		r = g.complete(r, &res)
	}
	goexit = false
}
