package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// A stray is a message that arrives where no route of this instance wants it: while instances with different routes share a
// durable, after a route was taken away from one, after the stream got more subjects. It is never handled here. It is
// given back soon, for another instance may have the route. When it keeps coming, or when many do, it is kept in the retry
// stream, where it waits for the route without filling the durable; unless a route of this instance gets it from another durable.

const (
	// A stray comes back after strayDelay, doubled each time, and is kept when it arrives for the strayTries-th time: after
	// about three seconds.
	strayDelay = 100 * time.Millisecond
	strayTries = 6
	// unkeptDelay is how long one stays away that the retry stream does not take.
	unkeptDelay = time.Minute
	// strayPaths is how many are being kept at once, and maxStrays how many may wait for that before no more is pulled.
	strayPaths = 64
	maxStrays  = 1024
	// strayTold is how often the log tells of those of a subject, and how long after the last one nobody is told any more.
	strayTold = time.Minute
)

// strays are those of a source.
type strays struct {
	paths   *pool.Pool
	waiting atomic.Int64
	unknown atomic.Bool // there was one that no route ever configured on the durable wants

	// From this sequence on the durable delivers all that the routes want, for certain. Fixed when it is open.
	delivers uint64

	mu          sync.Mutex
	since, last time.Time
	example     string
	held        []string       // subjects of the stream
	gone        []dispatchName // what the durable is for and no route here wants, most specific first
	looked      time.Time      // when the look began that found these
	told        map[string]*strayCount
	unheld      map[*route]bool // the stream holds none of its subjects
}

type dispatchName struct{ pattern, route string }

// strayCount is what the log has not said of a subject.
type strayCount struct {
	n       int
	at      time.Time // when it last said something
	example string
}

// learn notes what the durable is for beside the subjects of the routes that are here, by a look that began then. What another
// instance has for a route that is here too is kept for no route: here, it would be handled by the wrong one.
func (s *source) learn(c jetstream.StreamConfig, m provision.Mark, began time.Time) {
	var gone []dispatchName
	for name, patterns := range m.Routes {
		to := name
		if slices.ContainsFunc(s.relay.all(), func(rt *route) bool { return rt.cfg.Name == name }) {
			to = retry.NoRoute
		}
		for _, p := range patterns {
			if !slices.ContainsFunc(s.patterns, func(d dispatch) bool { return d.route.cfg.Name == name && subject.Covers(d.pattern, p) }) {
				gone = append(gone, dispatchName{p, to})
			}
		}
	}
	slices.SortFunc(gone, func(a, b dispatchName) int {
		if c := subject.Compare(a.pattern, b.pattern); c != 0 {
			return c
		}
		return strings.Compare(a.route, b.route)
	})
	s.strays.mu.Lock()
	defer s.strays.mu.Unlock()
	s.strays.held, s.strays.gone, s.strays.looked = c.Subjects, gone, began
	for _, rt := range s.routes {
		if s.unheld(c, rt) && !s.strays.unheld[rt] {
			if s.strays.unheld == nil {
				s.strays.unheld = make(map[*route]bool)
			}
			s.strays.unheld[rt] = true
			rt.log.Warn("the stream holds no subject of this route: nothing can arrive", "stream", s.stream, "holds", c.Subjects, "subjects", rt.cfg.Subjects)
		} else if !s.unheld(c, rt) {
			delete(s.strays.unheld, rt)
		}
	}
}

// holdsNothingOf tells whether the route gets nothing, because its stream holds none of its subjects.
func (s *source) holdsNothingOf(rt *route) bool {
	s.strays.mu.Lock()
	defer s.strays.mu.Unlock()
	return s.strays.unheld[rt]
}

// stray settles a message that no route of this instance wants. The origin of one that was wrapped is its own.
func (m *message) stray(origin *retry.Origin) {
	s, d := m.source, m.delivery
	s.count.strays.Add(1)
	to := retry.NoRoute
	if origin != nil {
		to = origin.Route
		s.strays.note(fmt.Sprintf("%s of stream %s", origin.Route, origin.Stream), origin.Subject)
	} else {
		var pattern string
		var known bool
		if pattern, to, known = s.strays.wantedBy(m.subject); !known && !s.strays.unknown.Swap(true) {
			s.watchdog.doubt.Store(true) // the stream may have got more subjects, which the durable need not deliver
		}
		s.strays.note(pattern, m.subject)
	}
	s.tellStrays(time.Now())
	if m.bodyless {
		m.returnBodyless()
		return
	}
	pending := s.session.AckPending()
	back := d.Deliveries < strayTries && pending <= asideFrom
	if !back && to == retry.NoRoute && pending < maxAckPending/2 && !s.strays.sure(d.Deliveries) {
		s.watchdog.doubt.Store(true)
		back = true
	}
	if back && !s.health.IsBounded() {
		_ = d.Nak(time.Now().Add(strayDelay << (min(d.Deliveries, strayTries) - 1))) // fenced: somebody else has it
		return
	}
	if origin == nil && s.isElsewhere(m.subject, d.Sequence) {
		s.count.tally.Elsewhere()
		m.done()
		return
	}
	s.strays.waiting.Add(1)
	s.strays.paths.Go(func() {
		m.keep(origin, to)
		if s.strays.waiting.Add(-1) == maxStrays/2 {
			s.arrivals.Wake()
		}
	})
}

// isElsewhere tells whether a route of this instance gets a message from another durable of the stream: one that moved away from this durable, which
// goes on delivering its subjects. To keep it would have it handled twice, should the route come back.
func (s *source) isElsewhere(literal string, sequence uint64) bool {
	return !s.due && slices.ContainsFunc(s.relay.openSources(), func(o *source) bool {
		return o != s && !o.due && o.stream == s.stream && sequence >= o.strays.delivers && o.routeOf(literal) != nil
	})
}

// noteDelivers notes from which sequence on the durable certainly delivers what the routes want: it has their subjects by now.
func (s *source) noteDelivers(ctx context.Context, stream jetstream.Stream) error {
	if s.due {
		return nil
	}
	info, err := stream.Info(ctx)
	if err == nil {
		s.strays.delivers = info.State.LastSeq + 1
	}
	return err
}

// keep has the retry stream keep a stray: for the route it came for, or for nobody.
func (m *message) keep(origin *retry.Origin, to string) {
	s, d := m.source, m.delivery
	if d.Fenced() {
		d.Release()
		return
	}
	ctx, cancel := context.WithTimeout(s.routes[0].work, settleTimeout)
	defer cancel()
	var err error
	if origin != nil {
		err = s.relay.retries.Forward(ctx, *origin, m.header, m.data)
	} else {
		err = m.keepUnwrapped(ctx, to)
	}
	if err != nil {
		s.log.Debug("a message that no route here wants is not kept in the retry stream", "subject", m.subject, "seq", d.Sequence, "error", err)
		if m.route == nil {
			m.route = s.routes[0] // which holds it, if it must be held
		}
		if s.health.IsBounded() {
			m.hold(time.Now().Add(heldEvery), err, func() { m.keep(origin, to) })
			return
		}
		_ = d.Nak(time.Now().Add(unkeptDelay))
		return
	}
	m.done()
}

func (m *message) keepUnwrapped(ctx context.Context, to string) error {
	s, d := m.source, m.delivery
	rec, err := s.records.Get(ctx, d.Sequence, d.Deliveries)
	switch {
	case err != nil:
		return err
	case rec.Crashes > 0:
		return errors.New("it may have ended a process, and its crash count would be lost")
	}
	m.recorded = rec.Known()
	return s.relay.retries.Park(ctx, retry.Origin{
		Route: to, Stream: s.stream, Consumer: s.durable, Sequence: d.Sequence, Time: d.Time, Subject: m.subject, Deliveries: d.Deliveries,
		Attempts: rec.Attempts, FirstFailure: rec.FirstFailure, LastFailure: rec.LastFailure, LastError: rec.LastError,
	}, m.header, m.data, time.Now(), s.routes[0].parkRoom(1), 0)
}

// sure tells whether the durable was looked at since a message that comes for the nth time came for the first time. Before, another
// instance may have given the durable the route that the message is for.
func (t *strays) sure(deliveries uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.looked) < strayDelay*(1<<(min(deliveries, 2*strayTries)-1)-1) // what it was away
}

// wantedBy is the route that this instance does not have and that the subject is for, and what is said of it. What is not
// known was never configured on the durable.
func (t *strays) wantedBy(literal string) (pattern, route string, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.gone {
		if subject.Matches(d.pattern, literal) {
			return d.pattern, d.route, true
		}
	}
	for _, held := range t.held {
		if subject.Matches(held, literal) {
			return held, retry.NoRoute, false
		}
	}
	return "others", retry.NoRoute, false
}

func (t *strays) note(pattern, literal string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.last) > strayTold {
		t.since = now
	}
	t.last, t.example = now, literal
	if t.told == nil {
		t.told = make(map[string]*strayCount)
	}
	c := t.told[pattern]
	if c == nil {
		c = new(strayCount)
		t.told[pattern] = c
	}
	c.n++
	c.example = literal
}

// tellStrays logs what came, once a minute for each subject.
func (s *source) tellStrays(now time.Time) {
	t := &s.strays
	t.mu.Lock()
	defer t.mu.Unlock()
	for pattern, c := range t.told {
		if now.Sub(c.at) < strayTold {
			continue
		}
		if c.n == 0 {
			delete(t.told, pattern)
			continue
		}
		s.log.Warn("messages arrive that no route of this instance wants; they go back for another instance, and what nobody takes is kept in the retry stream",
			"subjects", pattern, "count", c.n, "example", c.example)
		c.n, c.at = 0, now
	}
}

// trouble says that strays came lately, if so.
func (s *source) strayTrouble() string {
	t := &s.strays
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.IsZero() || time.Since(t.last) > strayTold {
		return ""
	}
	return fmt.Sprintf("durable %s on %s: messages that no route of this instance wants, such as %q, since %s (%d in all); what no other instance takes is kept in the retry stream",
		s.durable, s.stream, t.example, t.since.UTC().Format(time.RFC3339), s.count.strays.Load())
}
