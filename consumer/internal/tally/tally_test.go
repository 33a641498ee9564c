package tally

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// streams are relay's own, as these tests say.
type streams struct {
	edited, moved time.Time
	discarded     bool
	lost          uint64
}

func (s *streams) Operated() ([]dlq.Job, bool)                         { return nil, s.discarded }
func (s *streams) RetryEdited() (edited, moved time.Time)              { return s.edited, s.moved }
func (s *streams) LostParked(_ context.Context, _ string, lost uint64) { s.lost += lost }

// world is the durable JOBS/billing with the route billing, of which messages are handled by hand.
type world struct {
	*Tally
	t      *testing.T
	js     jetstream.JetStream
	keeper *Keeper
	own    *streams
	route  RouteCount
	count  DurableCount
	done   atomic.Uint64
	hand   atomic.Int64
	source atomic.Pointer[Source]
	refuse error // what Ask returns
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, js: s.JetStream(t), own: &streams{discarded: true}}
	_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}})
	w.do(err)
	_, err = retry.OpenStream(t.Context(), w.js, "relay", "RELAY_RETRY", 1)
	w.do(err)
	w.keeper = NewKeeper(Config{
		Conn: s.Conn(t), JS: w.js, API: jetstream.DefaultAPIPrefix, Looks: looks.New(w.js), Service: "relay", Instance: "a", Retry: "RELAY_RETRY", Upkeep: w.own,
		Tallies: func() []*Tally { return []*Tally{w.Tally} },
	})
	book, err := audit.Open(t.Context(), w.js, "relay", 1)
	w.do(err)
	w.keeper.Open(book)
	w.Tally = w.keeper.New(Of{
		Log: slog.New(slog.DiscardHandler), Stream: "JOBS", Durable: "billing",
		Routes: []Route{{Name: "billing", Count: &w.route, Ended: func() audit.Counts { return audit.Counts{Done: w.done.Load()} }, Hand: func() int { return int(w.hand.Load()) }}},
		Open: func() []*Source {
			if s := w.source.Load(); s != nil {
				return []*Source{s}
			}
			return nil
		},
	})
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// opens makes the durable, or makes it anew, and opens it.
func (w *world) opens() jetstream.Consumer {
	w.t.Helper()
	ctx := w.t.Context()
	if err := w.js.DeleteConsumer(ctx, "JOBS", "billing"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		w.do(err)
	}
	c, err := w.js.CreateConsumer(ctx, "JOBS", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour})
	w.do(err)
	info := c.CachedInfo()
	w.source.Store(Opened(Source{
		Stream: "JOBS", Durable: "billing", Count: &w.count,
		Naked: func() uint64 { return 0 },
		Ask: func(ctx context.Context) (*jetstream.ConsumerInfo, bool, error) {
			now, err := c.Info(ctx)
			return now, err == nil && now.Created.Equal(info.Created), errors.Join(err, w.refuse)
		},
	}, info, time.Now()))
	return c
}

// handles publishes n messages, and has all of them delivered and all but some handled.
func (w *world) handles(c jetstream.Consumer, n, but int) {
	w.t.Helper()
	for range n {
		_, err := w.js.Publish(w.t.Context(), "jobs.x", nil)
		w.do(err)
	}
	batch, err := c.Fetch(n)
	w.do(err)
	for m := range batch.Messages() {
		w.count.Delivered(Delivery{First: true, Route: &w.route, Subject: m.Subject()})
		w.hand.Add(1)
		if n--; n >= but {
			w.do(m.DoubleAck(w.t.Context()))
			w.done.Add(1)
			w.hand.Add(-1)
		}
	}
	w.do(batch.Error())
}

// parks has n messages in the retry stream that nobody counted.
func (w *world) parks(n int) {
	w.t.Helper()
	for i := range n {
		_, err := w.js.Publish(w.t.Context(), fmt.Sprint("relay.due.billing.JOBS.", i), nil)
		w.do(err)
	}
}

func (w *world) record() *audit.Record {
	w.t.Helper()
	r, err := w.keeper.book.Get(w.t.Context(), "JOBS", "billing")
	w.do(err)
	return r
}

func (w *world) write() {
	w.t.Helper()
	w.do(w.Write(w.t.Context()))
}

func (w *world) finish() {
	w.t.Helper()
	w.do(w.Finish(w.t.Context()))
}

func TestDurableCount_countsAFirstDeliveryWhereItBelongs(t *testing.T) {
	t.Parallel()
	const replay, brought = "relay.due.billing.JOBS.7-1-r2", "relay.due.billing.JOBS.7-1-b0"
	if !retry.IsBrought(brought) {
		t.Fatalf("%s is of no message that was brought", brought)
	}
	for name, c := range map[string]struct {
		of               Delivery
		received, replay uint64
		unrouted         uint64
	}{
		"of a route":                {of: Delivery{First: true}, received: 1},
		"again":                     {of: Delivery{}},
		"handed over later":         {of: Delivery{First: true, Passed: true}},
		"due":                       {of: Delivery{First: true, Due: true, Subject: "relay.due.billing.JOBS.7-1"}},
		"due, of a replay":          {of: Delivery{First: true, Due: true, Subject: replay}, replay: 1},
		"due, and brought":          {of: Delivery{First: true, Due: true, Subject: brought}, received: 1},
		"due, for a partition":      {of: Delivery{First: true, Due: true, Subject: replay, Partition: true}},
		"of a partition":            {of: Delivery{First: true, Partition: true}, received: 1},
		"that no route of it wants": {of: Delivery{First: true}, unrouted: 1},
	} {
		var d DurableCount
		var r RouteCount
		if c.unrouted == 0 {
			c.of.Route = &r
		}
		d.Delivered(c.of)
		first := uint64(0)
		if c.of.First {
			first = 1
		}
		if d.arrived.Load() != 1 || d.firsts.Load() != first || d.unrouted.Load() != c.unrouted || r.came() != (audit.Counts{Received: c.received, Replayed: c.replay}) {
			t.Errorf("%s: %+v, %d first, %d unrouted", name, r.came(), d.firsts.Load(), d.unrouted.Load())
		}
	}
}

func TestRouteCount_countsEnds(t *testing.T) {
	t.Parallel()
	var r RouteCount
	for _, e := range []End{Dropped, Expired, Expired, Forgotten, Forgotten, Forgotten} {
		r.Ended(e)
	}
	if want := (audit.Counts{Dropped: 1, Expired: 2, Forgotten: 3}); r.ended() != want {
		t.Errorf("%+v", r.ended())
	}
	r.FromNowhere("relay.due.billing.JOBS.stray")
	r.FromNowhere("relay.due.billing.JOBS.7-1-r2") // counted when it arrived
	if r.came() != (audit.Counts{Replayed: 1}) {
		t.Errorf("%+v", r.came())
	}
}

// Only an error without an answer leaves open whether a parked message is stored.
func TestRouteCount_isUnsureOfWhatWasNotAnswered(t *testing.T) {
	t.Parallel()
	var r RouteCount
	for _, err := range []error{nil, retry.ErrParkFull, nats.ErrMaxPayload, fmt.Errorf("no: %w", &jetstream.APIError{Code: 400})} {
		if r.NotParked(err); r.unsure.Load() != 0 {
			t.Fatalf("%v", err)
		}
	}
	if r.NotParked(context.DeadlineExceeded); r.unsure.Load() != 1 {
		t.Error("no answer came, and it is sure")
	}
}

// Each write adds what was counted since the one before.
func TestTally_writesWhatWasCountedSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write() // nothing is open
	c := w.opens()
	w.Begin(t.Context())
	w.handles(c, 5, 2)
	w.write()
	if r := w.record(); !r.Whole || r.Carried != 0 || r.Total() != (audit.Counts{Received: 5, Done: 3}) || len(r.Instances) != 1 {
		t.Fatalf("%+v", r)
	}
	revision := func() uint64 {
		e, err := w.keeper.book.KV().Get(t.Context(), "JOBS.billing")
		w.do(err)
		return e.Revision()
	}
	before := revision()
	w.write()
	if revision() != before {
		t.Error("nothing was counted, and it is written")
	}
	w.wrote = time.Now().Add(-quiet)
	if w.write(); revision() == before {
		t.Error("with messages in hand it says nothing for longer than it may")
	}
	w.count.Delivered(Delivery{First: true})
	w.count.Elsewhere()
	w.route.Ended(Dropped)
	w.route.NotParked(context.DeadlineExceeded)
	w.finish()
	r := w.record()
	if r.Routes[unrouted] != (audit.Counts{Received: 1, Dropped: 1}) || r.Routes["billing"] != (audit.Counts{Received: 5, Done: 3, Dropped: 1}) || r.Unsure != 1 || len(r.Instances) != 0 {
		t.Errorf("%+v", r)
	}
}

// Whoever writes after the last addition leaves the record as it is: a process that ended cleanly is not in it.
func TestTally_regressionNothingFollowsTheLastAddition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.opens()
	w.finish()
	w.handles(c, 2, 1)
	w.write()
	if r := w.record(); len(r.Instances) != 0 || r.Total() != (audit.Counts{}) {
		t.Errorf("%+v", r)
	}
}

// A last addition that could not be written was followed by another one, of counts that belonged to the tally after it by then: a data race.
func TestTally_regressionNothingFollowsALastAdditionThatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handles(w.opens(), 2, 0)
	w.write()
	before := w.record().Total()
	away, cancel := context.WithCancel(t.Context())
	cancel()
	w.done.Add(1)
	if err := w.Finish(away); err == nil {
		t.Error("it was written")
	}
	w.done.Add(1)
	w.write()
	if after := w.record().Total(); after != before {
		t.Errorf("%+v, and before %+v", after, before)
	}
	// The keeper writes it when that can be: what was counted until then was missing from the ledger for ever.
	w.keeper.finish(away)
	w.keeper.finish(t.Context())
	w.keeper.finish(t.Context())
	before.Done++
	if r := w.record(); r.Total() != before || len(r.Instances) != 0 {
		t.Errorf("%+v, want %+v", r, before)
	}
}

// What ends without a count is in the record all the same.
func TestTally_leavesARecordWhenNothingWasCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opens()
	w.write()
	w.finish()
	if r := w.record(); len(r.Instances) != 0 || r.Total() != (audit.Counts{}) {
		t.Errorf("%+v", r)
	}
}

// A durable that is made anew has a ledger of its own. It begins with what is parked.
func TestTally_beginsAnewWithTheDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.opens()
	w.Begin(t.Context())
	w.handles(c, 3, 0)
	w.write()
	w.handles(c, 2, 0) // not written: its durable is no more
	w.parks(4)
	c = w.opens()
	w.write()
	if r := w.record(); r.Carried != 4 || r.Total() != (audit.Counts{}) || !r.Whole {
		t.Fatalf("%+v", r)
	}
	w.handles(c, 5, 1) // all come again
	w.write()
	if r := w.record(); r.Total() != (audit.Counts{Received: 5, Done: 4}) {
		t.Errorf("%+v", r)
	}
}

// A ledger that cannot begin before the first message leaves out what came until it begins.
func TestTally_beginsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kv := w.keeper.book.KV()
	_, err := kv.Put(t.Context(), "JOBS.billing", []byte(`{"format":99}`))
	w.do(err)
	c := w.opens()
	w.Begin(t.Context())
	w.handles(c, 6, 2)
	if err := w.Write(t.Context()); !errors.Is(err, audit.ErrNewer) {
		t.Fatalf("%v", err)
	}
	w.do(kv.Purge(t.Context(), "JOBS.billing"))
	w.parks(3)
	w.refuse = errors.New("not now")
	if err := w.Write(t.Context()); !errors.Is(err, w.refuse) {
		t.Fatalf("%v", err)
	}
	w.refuse = nil
	w.write()
	if r := w.record(); r.Whole || r.Carried != 5 || r.Moved != 0 || r.Total() != (audit.Counts{}) {
		t.Errorf("%+v", r)
	}
	w.handles(c, 1, 0)
	w.write()
	if r := w.record(); r.Total() != (audit.Counts{Received: 1, Done: 1}) {
		t.Errorf("%+v", r)
	}
}

// The durable was made anew, and the one that was opened is still thought to be open.
func TestTally_doesNotBeginLateForADurableThatIsNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opens()
	old := w.source.Load()
	w.opens()
	w.source.Store(old)
	w.pulling = true
	if err := w.Write(t.Context()); err == nil || !strings.Contains(err.Error(), "was created again just now") {
		t.Errorf("%v", err)
	}
}

func TestKeeper_writesAndAudits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.opens()
	w.handles(c, 4, 0)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w)
	if families, err := reg.Gather(); err != nil || len(families) > 0 {
		t.Errorf("%v, %v", families, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.keeper.Run(ctx)
	}()
	for w.Balance() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-over
	if b := w.Balance(); b.Verdict != audit.Balanced || b.Total != (audit.Counts{Received: 4, Done: 4}) {
		t.Errorf("%+v", b)
	}
	families, err := reg.Gather()
	w.do(err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "side" {
					name += " " + l.GetValue()
				}
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	if len(got) != 4 || got["relay_audit_messages came"] != 4 || got["relay_audit_messages through"] != 4 || got["relay_audit_messages waiting"] != 0 {
		t.Errorf("%v", got)
	}
}

func (w *world) Describe(ch chan<- *prometheus.Desc) { Describe(ch) }
func (w *world) Collect(ch chan<- prometheus.Metric) { w.keeper.Collect(ch) }

// A ledger of which nothing is open is not looked at again while its streams are as they were.
func TestTally_auditsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list := w.keeper.cfg.Tallies()
	if w.audit(t.Context(), list); w.Balance() != nil {
		t.Error("nothing is open, and it is audited")
	}
	w.handles(w.opens(), 2, 0)
	w.write()
	w.audit(t.Context(), list)
	first := w.Balance()
	if first == nil || len(w.quiet) != 3 {
		t.Fatalf("%+v, quiet %v", first, w.quiet)
	}
	if w.audit(t.Context(), list); w.Balance() != first {
		t.Error("it was audited again")
	}
	w.own.edited = time.Now()
	w.own.discarded = false
	if w.audit(t.Context(), list); w.Balance() == first {
		t.Error("somebody edited the retry stream, and it was not audited again")
	}
}

func TestKeeper_auditsSoonAfterAnEdit(t *testing.T) {
	t.Parallel()
	now, long := time.Now(), time.Now().Add(-time.Hour)
	for want, s := range map[time.Duration]streams{0: {edited: now, moved: now}, auditEvery / 4: {edited: long, moved: now}, auditEvery: {edited: long, moved: long}} {
		if got := NewKeeper(Config{Upkeep: &s}).auditAgain(now); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// Parked messages are lost for certain when two looks at a quiet ledger miss them, and the retry stream has lost as many.
func TestTally_saysWhatIsLostForCertain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		purge, moving bool
		soon          bool
		missing       int64
		want          uint64
	}{
		"purged":                         {purge: true, missing: 3, want: 3},
		"purged, and fewer are missing":  {purge: true, missing: 2, want: 2},
		"missing, but not from there":    {missing: 3},
		"too soon":                       {purge: true, missing: 3, soon: true},
		"messages move":                  {purge: true, missing: 3, moving: true},
		"what is there twice is no loss": {purge: true, missing: -3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.opens()
			w.parks(3)
			w.missing(t.Context(), audit.Balance{Parked: 3, Verdict: audit.Balanced})
			if c.purge {
				s, err := w.js.Stream(t.Context(), "RELAY_RETRY")
				w.do(err)
				w.do(s.Purge(t.Context()))
			}
			b := audit.Balance{Difference: c.missing, Verdict: audit.Unexplained}
			w.missing(t.Context(), b)
			if !c.soon {
				w.lost.at = time.Now().Add(-time.Minute)
			}
			if c.moving {
				b.Verdict = audit.Moving
			}
			w.missing(t.Context(), b)
			w.missing(t.Context(), b) // it is said once
			if w.own.lost != c.want {
				t.Errorf("%d are lost, want %d", w.own.lost, c.want)
			}
		})
	}
}
