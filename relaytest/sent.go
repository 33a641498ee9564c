package relaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
)

// How says how a message ended.
type How string

// How messages end.
const (
	// Done: a handler succeeded.
	Done How = "done"
	// Dropped: a handler said that nobody wants the message.
	Dropped How = "dropped"
	// DeadLettered: the message is in the dead letters.
	DeadLettered How = "dead-lettered"
)

// Settled is the end of a message.
type Settled struct {
	How How
	// Attempts are the verdicts of the handler, in order, also those that spent no attempt.
	Attempts []consumer.Verdict
	// DeadLetter is the entry, with its body, of a message that is DeadLettered; else nil.
	DeadLetter *dlq.Entry
}

// Sent is a message that was published.
type Sent struct {
	relay    *Relay
	subject  string
	stream   string
	sequence uint64
	routes   []string // that handle it
}

// At is the message for one of several routes that handle it.
func (s *Sent) At(route string) *Sent {
	at := *s
	at.routes = []string{route}
	return &at
}

// Want is [Sent.Wait], and fails the test when the message ended otherwise.
func (s *Sent) Want(how How) Settled {
	s.relay.t.Helper()
	got := s.Wait()
	if got.How != how {
		s.relay.t.Errorf("the message on %s is %s, want %s; its attempts:%s", s.subject, got.How, how, attempts(got.Attempts))
	}
	return got
}

// Wait waits until relay is through with the message: a handler succeeded or dropped it, or it is in the dead letters. It ends the
// test when that is not so within 30 seconds, and says what became of the message until then. A message that no handler gets to see,
// because its publisher does not want it any more, has no end that Wait could see.
func (s *Sent) Wait() Settled {
	r := s.relay
	r.t.Helper()
	if len(s.routes) != 1 {
		r.t.Fatalf("relaytest: %d routes handle %s (%s): name the one to wait for with At", len(s.routes), s.subject, strings.Join(s.routes, ", "))
	}
	at := place{s.routes[0], s.stream, s.sequence}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		verdicts, changed := r.notes.of(at)
		if n := len(verdicts); n > 0 {
			switch verdicts[n-1].Kind {
			case consumer.VerdictAck:
				return Settled{How: Done, Attempts: verdicts}
			case consumer.VerdictDrop:
				return Settled{How: Dropped, Attempts: verdicts}
			}
		}
		letter, err := r.letter(ctx, at.route, at.stream, at.sequence)
		if letter != nil {
			verdicts, _ = r.notes.of(at)
			return Settled{How: DeadLettered, Attempts: verdicts, DeadLetter: letter}
		}
		select {
		case <-changed:
		case <-look.C: // a dead letter is stored after its last verdict
		case <-r.ended:
			r.t.Fatalf("relay ended (%v) before it was through with the message on %s; its attempts:%s", r.err, s.subject, attempts(verdicts))
		case <-ctx.Done():
			r.t.Fatalf("relay is not through with the message on %s after %v; its attempts:%s\nready: %v\nlast look at the dead letters: %v",
				s.subject, patience, attempts(verdicts), r.Ready(), err)
		}
	}
}

// attempts is a list of verdicts for a person.
func attempts(list []consumer.Verdict) string {
	if len(list) == 0 {
		return " none"
	}
	var b strings.Builder
	for i, v := range list {
		fmt.Fprintf(&b, "\n  %d: %s", i+1, say(v))
	}
	return b.String()
}

// place is a message on its way through a route.
type place struct {
	route, stream string
	sequence      uint64
}

// notes are the verdicts of handlers.
type notes struct {
	mu      sync.Mutex
	by      map[place][]consumer.Verdict
	changed chan struct{} // closed at the next verdict
}

func newNotes() *notes {
	return &notes{by: make(map[place][]consumer.Verdict), changed: make(chan struct{})}
}

// take is the middleware that notes verdicts.
func (n *notes) take(next consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, m *consumer.Msg) (err error) {
		at, finished := place{m.Route, m.Stream, m.Sequence}, false
		defer func() {
			if finished {
				n.add(at, consumer.VerdictOf(err))
				return
			}
			// Not recovered here: relay is to see the panic, with its stack.
			n.add(at, consumer.VerdictOf(consumer.Crashed(errPanic)))
		}()
		err = next.Handle(ctx, m)
		finished = true
		return err
	})
}

var errPanic = errors.New("the handler panicked, or called runtime.Goexit")

func (n *notes) add(at place, v consumer.Verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.by[at] = append(n.by[at], v)
	close(n.changed)
	n.changed = make(chan struct{})
}

// of are the verdicts of a message so far, and what is closed when there are more.
func (n *notes) of(at place) ([]consumer.Verdict, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.by[at]
	return list[:len(list):len(list)], n.changed
}
