package tally

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/trouble"
)

// unrouted stands for a route in the ledger: messages that no route of the instance that got them wants.
const unrouted = retry.NoRoute

// Of says of what a tally is.
type Of struct {
	Log             *slog.Logger
	Stream, Durable string
	Routes          []Route
	// Open are the durables that are open now: the main one, and those of its routes on the retry stream.
	Open func() []*Source
}

// Route is a route of the durable.
type Route struct {
	Name  string
	Count *RouteCount
	// Ended is what others count: done, dead, or ended by the fallback.
	Ended func() audit.Counts
	// Hand is how many messages it has in hand.
	Hand func() int
}

// Source is a durable from its opening to its end. [Opened] makes it whole.
type Source struct {
	Stream, Durable string
	Due             bool // on the retry stream
	Count           *DurableCount
	// Naked is how many NAKs were sent.
	Naked func() uint64
	// Ask asks the server for the durable. same: it is the one that was opened.
	Ask func(context.Context) (info *jetstream.ConsumerInfo, same bool, err error)

	// What the server said when it was opened, and when it was asked. Guarded by Tally.writing, as is what follows.
	start       audit.Start
	outstanding int
	at          time.Time

	nakedWritten uint64
}

// Opened is the source from now on: the server said info of its durable when it was asked at that time, before anything was pulled.
func Opened(s Source, info *jetstream.ConsumerInfo, at time.Time) *Source {
	s.start, s.outstanding, s.at = startOf(info), info.NumAckPending, at
	return &s
}

func startOf(info *jetstream.ConsumerInfo) audit.Start {
	return audit.Start{Created: info.Created, Delivered: info.Delivered.Consumer}
}

// Tally is what was counted of a durable, on its way to the ledger. Make it with [Keeper.New].
type Tally struct {
	keeper  *Keeper
	cfg     Of
	writing sync.Mutex // held by who writes

	writer  *audit.Writer
	created time.Time // of the durable
	opening audit.Opening
	told    bool // the record has its routes
	pulling bool // messages may have come that the opening would have to know
	done    bool // nothing is added any more
	hand    int
	wrote   time.Time
	balance atomic.Pointer[audit.Balance]
	failed  trouble.Throttle

	// Of Keeper.Run only:
	next, audited time.Time
	quiet         []looks.Content // of the streams at the last audit, if nothing was open
	lost          loss
}

// New makes a tally, and asks nobody.
func (k *Keeper) New(of Of) *Tally { return &Tally{keeper: k, cfg: of} }

// Balance is what the last audit said; nil: there was none.
func (t *Tally) Balance() *audit.Balance { return t.balance.Load() }

// main is the main durable that is open now; nil when there is none.
func (t *Tally) main() *Source {
	for _, s := range t.cfg.Open() {
		if !s.Due {
			return s
		}
	}
	return nil
}

// gather is what was counted since the last time; nil when that is nothing.
//
// Deliveries are read first, then what is in hand, then how messages ended: a message whose delivery is in the addition is in
// hand, or its end is in the addition too.
func (t *Tally) gather() *audit.Addition {
	a := &audit.Addition{Routes: map[string]audit.Counts{}, Durables: map[string]audit.Durable{}, Opening: t.opening}
	change := !t.told
	for _, s := range t.cfg.Open() {
		c := s.Count
		now := audit.Deliveries{Arrived: c.arrived.Load(), First: c.firsts.Load()}
		naked := s.Naked()
		d := now.Sub(c.written)
		d.Naked = naked - s.nakedWritten
		c.written, s.nakedWritten = now, naked
		a.Durables[audit.Name(s.Stream, s.Durable)] = audit.Durable{Start: s.start, Deliveries: d}
		change = change || d != audit.Deliveries{}
		n, e := c.unrouted.Load(), c.elsewhere.Load()
		if !s.Due && (n > c.unroutedWritten || e > c.elsewhereWritten) {
			a.Routes[unrouted], change = audit.Counts{Received: n - c.unroutedWritten, Dropped: e - c.elsewhereWritten}, true
			c.unroutedWritten, c.elsewhereWritten = n, e
		}
	}
	came := make([]audit.Counts, len(t.cfg.Routes))
	for i, rt := range t.cfg.Routes {
		came[i] = rt.Count.came()
	}
	for _, rt := range t.cfg.Routes {
		a.Hand += rt.Hand()
	}
	for i, rt := range t.cfg.Routes {
		now := came[i].Add(rt.Ended()).Add(rt.Count.ended())
		c := now.Sub(rt.Count.written)
		rt.Count.written = now
		if c != (audit.Counts{}) || !t.told {
			a.Routes[rt.Name], change = c, true
		}
		unsure := rt.Count.unsure.Load()
		a.Unsure += unsure - rt.Count.unsureWritten
		rt.Count.unsureWritten = unsure
	}
	if !change && a.Unsure == 0 && a.Hand == t.hand && (a.Hand == 0 || time.Since(t.wrote) < quiet) {
		return nil
	}
	return a
}

// Begin opens the ledger before the first message is pulled, if the server answers soon.
func (t *Tally) Begin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	_ = t.Write(ctx)
	t.writing.Lock()
	defer t.writing.Unlock()
	t.pulling = true
}

// Write adds to the ledger what was counted since the last time.
func (t *Tally) Write(ctx context.Context) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if main, err := t.ready(ctx); main == nil || err != nil {
		return err
	}
	a := t.gather()
	if a == nil {
		return nil
	}
	return t.add(ctx, a, t.writer.Add)
}

// Finish is Write for the last time: nothing follows, whoever calls it, and whether it succeeds or not. The routes may be counted by another tally then.
// What could not be written the keeper tries again.
func (t *Tally) Finish(ctx context.Context) (err error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	defer func() {
		if t.done = true; err != nil && t.writer != nil {
			t.keeper.finishLater(t.writer)
		}
	}()
	main, err := t.ready(ctx)
	if main == nil || err != nil {
		return err
	}
	a := t.gather()
	if a == nil {
		a = &audit.Addition{Opening: t.opening, Durables: map[string]audit.Durable{audit.Name(t.cfg.Stream, t.cfg.Durable): {Start: main.start}}}
	}
	return t.add(ctx, a, t.writer.Finish)
}

// add makes an addition. The lock of writing is held.
func (t *Tally) add(ctx context.Context, a *audit.Addition, by func(context.Context, *audit.Book, *audit.Addition) error) error {
	t.told, t.hand, t.wrote = true, a.Hand, time.Now()
	return t.problem(by(ctx, t.keeper.book, a))
}

// ready has the ledger be the one of the durable, with what is not certainly in it; nil: there is none to write. The lock of writing is held.
func (t *Tally) ready(ctx context.Context) (*Source, error) {
	main := t.main()
	if main == nil || t.done {
		return nil, nil
	}
	if !t.created.Equal(main.start.Created) {
		if !t.created.IsZero() {
			t.gather() // that was of a durable which is there no more
		}
		t.created, t.told = main.start.Created, false
		t.writer = audit.NewWriter(t.cfg.Stream, t.cfg.Durable, nuid.Next(), t.keeper.cfg.Instance)
		t.opening = audit.Opening{}
	}
	if t.opening.At.IsZero() {
		opening, err := t.open(ctx, main)
		if err != nil {
			return nil, t.problem(err)
		}
		t.opening = opening
	}
	if a := t.writer.Pending(); a != nil {
		if err := t.writer.Add(ctx, t.keeper.book, a); err != nil {
			return nil, t.problem(err)
		}
	}
	return main, nil
}

// open is what waited before the ledger began.
func (t *Tally) open(ctx context.Context, main *Source) (audit.Opening, error) {
	o := audit.Opening{At: main.at.UTC(), Carried: uint64(main.outstanding)}
	record, err := t.keeper.book.Get(ctx, t.cfg.Stream, t.cfg.Durable)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
	case err != nil:
		return o, err
	case record.Began(main.start):
		return o, nil // without this instance, which looked later
	}
	if t.pulling {
		return t.openLate(ctx, main)
	}
	n, err := t.parked(ctx)
	o.Carried += n
	return o, err
}

// openLate is open while messages come and go: at the start the server did not answer soon enough, or the durable was made anew.
// What was counted until now is left out, so that the ledger begins at this moment.
func (t *Tally) openLate(ctx context.Context, main *Source) (o audit.Opening, err error) {
	open, now := t.cfg.Open(), time.Now()
	starts := make([]audit.Start, len(open))
	outstanding := 0
	for i, s := range open {
		info, same, err := s.Ask(ctx)
		if err != nil {
			return o, err
		}
		if !same {
			return o, errors.New("durable " + s.Durable + " was created again just now")
		}
		starts[i] = startOf(info)
		if s == main {
			outstanding = info.NumAckPending
		}
	}
	parked, err := t.parked(ctx)
	if err != nil {
		return o, err
	}
	t.gather()
	after, _, err := main.Ask(ctx)
	if err != nil {
		return o, err
	}
	parkedAfter, err := t.parked(ctx)
	if err != nil {
		return o, err
	}
	for i, s := range open {
		s.start = starts[i]
		if s == main {
			s.outstanding, s.at = outstanding, now
		}
	}
	delivered := int64(after.Delivered.Consumer - main.start.Delivered)
	settled := delivered - int64(after.NumAckPending-outstanding)
	moved := max(delivered, 0) + max(settled, 0) + max(int64(parkedAfter-parked), int64(parked-parkedAfter))
	return audit.Opening{At: now.UTC(), Carried: uint64(outstanding) + parked, Moved: uint64(moved)}, nil
}

// parked is what the retry stream has for the routes, waiting or due.
func (t *Tally) parked(ctx context.Context) (sum uint64, err error) {
	cfg := t.keeper.cfg
	for _, rt := range t.cfg.Routes {
		of := rt.Name + "." + t.cfg.Stream + ".>"
		for _, subject := range []string{cfg.Service + ".park." + of, cfg.Service + ".due." + of} {
			n, _, err := audit.Matching(ctx, cfg.Conn, cfg.API, cfg.Retry, subject)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// problem tells of an error now and then. The ledger is nobody's condition for handling messages.
func (t *Tally) problem(err error) error {
	if others, ok := t.failed.Allow(time.Now()); err != nil && ok {
		t.cfg.Log.Warn("cannot write counts to the ledger; retrying", "others", others, "error", err)
	}
	return err
}
