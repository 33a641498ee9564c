package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/trouble"
	"github.com/relaymq/relay/supervisor"
)

const (
	// tallyEvery is how often a unit writes what it counted, and tallyQuiet how often while nothing changes but messages are in
	// hand: an instance that says nothing for longer counts as killed.
	tallyEvery = 5 * time.Second
	tallyQuiet = 15 * time.Second
	// tallyRest is the pause between the writes of two units: an instance with a thousand durables writes fifty a second at most.
	tallyRest = 20 * time.Millisecond
	// tallyPatience bounds what the begin of a unit waits for its ledger.
	tallyPatience = 2 * time.Second
	// auditEvery is how often the ledger of a unit is compared with the server for the metrics. With many units it is less often: one
	// unit each auditRest.
	auditEvery = time.Minute
	auditRest  = 250 * time.Millisecond
)

// unrouted stands for a route in the ledger: messages that no route of the instance that got them wants.
const unrouted = retry.NoRoute

// tally is what a unit counted, on its way to the ledger of its durable.
type tally struct {
	u       *unit
	writing sync.Mutex // held by who writes

	writer  *audit.Writer
	created time.Time // of the durable
	opening audit.Opening
	told    bool // the record has its routes
	pulling bool // messages may have come that the opening would have to know
	done    bool // the last addition is in the record
	hand    int
	wrote   time.Time
	next    time.Time       // of keepTallies only
	audited time.Time       // of keepTallies only
	quiet   []looks.Content // of keepTallies only: of the streams at the last audit, if nothing was open
	balance atomic.Pointer[audit.Balance]
	failed  trouble.Seldom
	lost    ledgerLoss // of keepTallies only
}

// base is what the server said of a durable when it was opened, before anything was pulled.
type base struct {
	audit.Start
	outstanding int
	at          time.Time
}

// tallied counts a delivery for the ledger.
func (s *source) tallied(rt *route, d *ack.Delivery, subject string, place catchup.Place) {
	s.count.arrived.Add(1)
	if d.Deliveries != 1 {
		return
	}
	s.count.firsts.Add(1)
	switch {
	case s.due && rt.cfg.part != nil: // it goes into its partition, which counts it
	case s.due:
		switch {
		case isReplay(subject):
			rt.count.replayed.Add(1)
		case retry.IsBrought(subject):
			rt.count.received.Add(1) // its durable had passed it
		}
	case place != catchup.Outside: // it comes that way
	case rt != nil:
		rt.count.received.Add(1)
	default:
		s.count.unrouted.Add(1)
	}
}

// isReplay tells whether a due subject is one on which the dead letters hand over, <seq>-<ns>-r<count>.
func isReplay(subject string) bool {
	i := strings.LastIndexByte(subject, '-')
	return i >= 0 && strings.HasPrefix(subject[i+1:], "r")
}

// ended counts what becomes of a message for good, but for those that are done or dead, which others count.
func (c *counters) ended(o supervisor.Outcome) {
	switch {
	case o.Action != supervisor.DropMessage:
	case o.Err == caller.ErrExpired:
		c.outcomes.expired.Add(1)
	case errors.Is(o.Err, ErrForgotten):
		c.outcomes.forgotten.Add(1)
	default:
		c.outcomes.dropped.Add(1)
	}
}

// counts are those of the route for the ledger.
func (c *counters) counts() audit.Counts {
	n := audit.Counts{
		Done: c.settled[supervisor.AckMessage].Load(), Fallback: c.fallback.Load(), Dropped: c.outcomes.dropped.Load(),
		Expired: c.outcomes.expired.Load(), Forgotten: c.outcomes.forgotten.Load(),
	}
	for i := range c.letters {
		n.Dead += c.letters[i].Load()
	}
	return n
}

// notParked counts an error of parking that does not prove that the message is not stored.
func (c *counters) notParked(err error) {
	var refused *jetstream.APIError
	if err != nil && !errors.Is(err, retry.ErrParkFull) && !errors.Is(err, nats.ErrMaxPayload) && !errors.As(err, &refused) {
		c.outcomes.unsure.Add(1)
	}
}

// main is the unit's source that is open now; nil when there is none.
func (t *tally) main() *source {
	for _, s := range t.u.open() {
		if !s.due {
			return s
		}
	}
	return nil
}

// gather is what was counted since the last time; nil when that is nothing.
//
// Deliveries are read first, then what is in hand, then how messages ended: a message whose delivery is in the addition is in
// hand, or its end is in the addition too.
func (t *tally) gather() *audit.Addition {
	a := &audit.Addition{Routes: map[string]audit.Counts{}, Durables: map[string]audit.Durable{}, Opening: t.opening}
	change := !t.told
	for _, s := range t.u.open() {
		now := audit.Deliveries{Arrived: s.count.arrived.Load(), First: s.count.firsts.Load()}
		naked := s.session.Stats().Naked
		d := now.Sub(s.count.written)
		d.Naked = naked - s.nakedWritten
		s.count.written, s.nakedWritten = now, naked
		a.Durables[audit.Name(s.stream, s.durable)] = audit.Durable{Start: s.base.Start, Deliveries: d}
		change = change || d != audit.Deliveries{}
		n, e := s.count.unrouted.Load(), s.count.elsewhere.Load()
		if !s.due && (n > s.count.unroutedWritten || e > s.count.elsewhereWritten) {
			a.Routes[unrouted], change = audit.Counts{Received: n - s.count.unroutedWritten, Dropped: e - s.count.elsewhereWritten}, true
			s.count.unroutedWritten, s.count.elsewhereWritten = n, e
		}
	}
	routes := t.u.main.routes
	received := make([]audit.Counts, len(routes))
	for i, rt := range routes {
		received[i] = audit.Counts{Received: rt.count.received.Load(), Replayed: rt.count.replayed.Load()}
	}
	for _, rt := range routes {
		messages, _ := rt.ledger.Held()
		a.Hand += messages
	}
	for i, rt := range routes {
		now := rt.count.counts().Add(received[i])
		c := now.Sub(rt.count.written)
		rt.count.written = now
		if c != (audit.Counts{}) || !t.told {
			a.Routes[rt.cfg.Name], change = c, true
		}
		unsure := rt.count.outcomes.unsure.Load()
		a.Unsure += unsure - rt.count.unsureWritten
		rt.count.unsureWritten = unsure
	}
	if !change && a.Unsure == 0 && a.Hand == t.hand && (a.Hand == 0 || time.Since(t.wrote) < tallyQuiet) {
		return nil
	}
	return a
}

// begin opens the ledger before the first message is pulled, if the server answers soon.
func (t *tally) begin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tallyPatience)
	defer cancel()
	_ = t.write(ctx, false)
	t.writing.Lock()
	defer t.writing.Unlock()
	t.pulling = true
}

// write adds to the ledger what was counted since the last time. With last nothing follows, whoever calls it.
func (t *tally) write(ctx context.Context, last bool) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	main := t.main()
	if main == nil || t.done {
		return nil
	}
	r := t.u.relay
	if !t.created.Equal(main.base.Created) {
		if !t.created.IsZero() {
			t.gather() // that was of a durable which is there no more
		}
		t.created, t.told = main.base.Created, false
		t.writer = audit.NewWriter(main.stream, main.durable, nuid.Next(), r.cfg.Instance)
		t.opening = audit.Opening{}
	}
	if t.opening.At.IsZero() {
		opening, err := t.open(ctx, main)
		if err != nil {
			return t.problem(err)
		}
		t.opening = opening
	}
	if a := t.writer.Pending(); a != nil {
		if err := t.writer.Write(ctx, r.ledgers, a, false); err != nil {
			return t.problem(err)
		}
	}
	a := t.gather()
	if a == nil && !last {
		return nil
	}
	if a == nil {
		a = &audit.Addition{Opening: t.opening, Durables: map[string]audit.Durable{audit.Name(main.stream, main.durable): {Start: main.base.Start}}}
	}
	t.told, t.hand, t.wrote = true, a.Hand, time.Now()
	err := t.writer.Write(ctx, r.ledgers, a, last)
	t.done = last && err == nil
	return t.problem(err)
}

// open is what waited before the ledger began.
func (t *tally) open(ctx context.Context, main *source) (audit.Opening, error) {
	o := audit.Opening{At: main.base.at.UTC(), Carried: uint64(main.base.outstanding)}
	record, err := t.u.relay.ledgers.Get(ctx, main.stream, main.durable)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
	case err != nil:
		return o, err
	case record.Began(main.base.Start):
		return o, nil // without this instance, which looked later
	}
	if t.pulling {
		return t.openLate(ctx, main)
	}
	n, err := t.parked(ctx, main)
	o.Carried += n
	return o, err
}

// openLate is open while messages come and go: at the start the server did not answer soon enough, or the durable was made anew.
// What was counted until now is left out, so that the ledger begins at this moment.
func (t *tally) openLate(ctx context.Context, main *source) (o audit.Opening, err error) {
	open, now := t.u.open(), time.Now()
	starts := make([]audit.Start, len(open))
	outstanding := 0
	for i, s := range open {
		identity, info, err := s.ask(ctx)
		if err != nil {
			return o, err
		}
		if !identity.Equal(s.identity) {
			return o, errors.New("durable " + s.durable + " was made anew just now")
		}
		starts[i] = audit.Start{Created: info.Created, Delivered: info.Delivered.Consumer}
		if s == main {
			outstanding = info.NumAckPending
		}
	}
	parked, err := t.parked(ctx, main)
	if err != nil {
		return o, err
	}
	t.gather()
	_, after, err := main.ask(ctx)
	if err != nil {
		return o, err
	}
	parkedAfter, err := t.parked(ctx, main)
	if err != nil {
		return o, err
	}
	for i, s := range open {
		s.base.Start = starts[i]
		if s == main {
			s.base.outstanding, s.base.at = outstanding, now
		}
	}
	delivered := int64(after.Delivered.Consumer - main.base.Delivered)
	settled := delivered - int64(after.NumAckPending-outstanding)
	moved := max(delivered, 0) + max(settled, 0) + max(int64(parkedAfter-parked), int64(parked-parkedAfter))
	return audit.Opening{At: now.UTC(), Carried: uint64(outstanding) + parked, Moved: uint64(moved)}, nil
}

// parked is what the retry stream has for the routes, waiting or due.
func (t *tally) parked(ctx context.Context, main *source) (sum uint64, err error) {
	r := t.u.relay
	for _, rt := range t.u.main.routes {
		of := rt.cfg.Name + "." + main.stream + ".>"
		subjects := []string{r.cfg.Service + ".park." + of, r.cfg.Service + ".due." + of}
		for _, subject := range subjects {
			n, _, err := audit.Matching(ctx, r.nc, r.api, r.retries.Name(), subject)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// problem tells of an error now and then. The ledger is nobody's condition for handling messages.
func (t *tally) problem(err error) error {
	if others, ok := t.failed.May(time.Now()); err != nil && ok {
		t.u.main.log.Warn("cannot write counts to the ledger; retrying", "others", others, "error", err)
	}
	return err
}

// keepTallies has all units write what they counted, until ctx is done.
func (r *Relay) keepTallies(ctx context.Context) {
	for ctx.Err() == nil {
		away.Pause(ctx, beat.Until(time.Second))
		r.mu.Lock()
		units := slices.Clone(r.units)
		r.mu.Unlock()
		for i, u := range units {
			t, now := &u.tally, time.Now()
			if ctx.Err() != nil {
				return
			}
			again := r.auditAgain(now)
			if again == auditEvery {
				again = max(again, time.Duration(len(units))*auditRest)
			}
			if t.audited.IsZero() { // one after the other
				t.audited = now.Add(time.Duration(i)*auditRest - again)
			}
			if now.Before(t.next) {
				continue
			}
			t.next = now.Add(tallyEvery)
			call, cancel := context.WithTimeout(ctx, settleTimeout)
			err := t.write(call, false)
			if err == nil && now.Sub(t.audited) >= again {
				t.audited = now
				t.audit(call, units)
			}
			cancel()
			away.Pause(ctx, tallyRest)
		}
	}
}

// audit compares the ledger with the server, for the metrics.
func (t *tally) audit(ctx context.Context, units []*unit) {
	main := t.main()
	if main == nil {
		return
	}
	alone := true
	for _, u := range units {
		alone = alone && (u == t.u || u.main.stream != main.stream)
	}
	r := t.u.relay
	now, known := t.contents(ctx, main)
	if known && slices.Equal(now, t.quiet) && r.auditAgain(time.Now()) == auditEvery {
		return // the same would come out
	}
	t.quiet = nil
	a := audit.Auditor{JS: r.js, API: r.api, Service: r.cfg.Service, Retry: r.retries.Name(), Book: r.ledgers,
		Discarded: func(_ context.Context, stream string, since time.Time) (map[string]int, error) {
			if list, known := r.upkeep.Discarded(); known {
				return dlq.DiscardedSince(list, stream, since), nil
			}
			return nil, nil
		},
	}
	if b, err := a.Audit(ctx, main.stream, main.durable, alone, 0); err == nil {
		t.balance.Store(&b)
		if known && b.Verdict == audit.Balanced && b.Uncounted == 0 && b.Outstanding == 0 && b.NotDelivered == 0 && b.Parked == 0 {
			t.quiet = now
		}
		t.missing(ctx, b)
	}
}

// contents are what the streams hold that an audit looks at: while they are the same and nothing is open, nothing comes or ends.
func (t *tally) contents(ctx context.Context, main *source) (list []looks.Content, known bool) {
	r := t.u.relay
	for _, name := range []string{main.stream, r.retries.Name(), "KV_" + audit.Bucket(r.cfg.Service)} {
		stream, err := r.streams.Get(ctx, name, checkEvery)
		if err != nil {
			return nil, false
		}
		list = append(list, looks.ContentOf(stream.CachedInfo()))
	}
	return list, true
}

// lastTallies writes what the units counted, and how far their durables are, when they are through.
func lastTallies(units []*unit, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var writing sync.WaitGroup
	for _, u := range units {
		writing.Go(func() { _ = u.tally.write(ctx, true) })
		writing.Go(func() { u.main.noteLastFloor(ctx) })
	}
	writing.Wait()
}

// collectAudits gives what the last audits said.
func (m *metrics) collectAudits(ch chan<- prometheus.Metric) {
	m.r.mu.Lock()
	units := slices.Clone(m.r.units)
	m.r.mu.Unlock()
	for _, u := range units {
		b := u.tally.balance.Load()
		if b == nil || b.Verdict == audit.Unknown {
			continue
		}
		gauge := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{b.Stream, b.Durable}, labels...)...)
		}
		gauge(m.audited, b.Carried+b.Total.In(), "came")
		gauge(m.audited, b.Total.Ended(), "through")
		gauge(m.audited, uint64(b.Outstanding)+b.Parked, "waiting")
		gauge(m.unexplained, b.Unexplained())
	}
}
