package durables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// differs is what the durables of these tests are refused with.
type differs []string

func (d differs) Error() string { return strings.Join(d, "; ") }

// world is a stream for jobs.>, and durables of the service relay on it.
type world struct {
	t       *testing.T
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	ledgers *audit.Book
}

func newWorld(t *testing.T, retention jetstream.RetentionPolicy, messages int) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, nc: s.Conn(t), js: s.JetStream(t)}
	var err error
	w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}, Retention: retention})
	w.do(err)
	w.ledgers, err = audit.Open(t.Context(), w.js, "relay", 1)
	w.do(err)
	for i := range messages {
		_, err := w.js.Publish(t.Context(), fmt.Sprint("jobs.", i%2), nil)
		w.do(err)
	}
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// floors are those of a durable with one route of its name.
func (w *world) floors(name string) *Floors {
	return &Floors{
		JS: w.js, Log: slog.New(slog.DiscardHandler), Retries: "RELAY_RETRY", Stream: "JOBS", Durable: name, Routes: func() []string { return []string{name} },
	}
}

// durable is one that a route wants, which begins as policy says.
func (w *world) durable(name, policy string, change func(*Config), subjects ...string) *Durable {
	start := Start{Policy: policy, Text: policy}
	var wants []catchup.Want
	var patterns []Pattern
	mark := provision.Mark{Service: "relay", Routes: map[string][]string{name: subjects}}
	for _, s := range subjects {
		wants = append(wants, catchup.Want{Pattern: s, Policy: policy})
		patterns = append(patterns, Pattern{Subject: s, Route: name, Log: slog.New(slog.DiscardHandler), Start: start})
	}
	cfg := Config{
		JS: w.js, Log: slog.New(slog.DiscardHandler), Service: "relay", Stream: "JOBS", Durable: name,
		Patterns: func() []Pattern { return patterns }, Start: func() Start { return start },
		Provided: func() provision.Durable {
			d := provision.Durable{Name: name, AckWait: 30 * time.Second, Mark: mark}
			if policy == "new" {
				d.Start.Policy = jetstream.DeliverNewPolicy
			}
			return d
		},
		FormerAckWait: func(time.Duration) time.Duration { return 0 },
		Unknown:       new(atomic.Bool),
		Risks:         func(jetstream.StreamConfig) []string { return nil },
		Floors:        w.floors(name),
		Differs:       func(fields []string) error { return differs(fields) },
		Listings:      new(Listings),
	}
	cfg.CatchUp = catchup.New(catchup.Config{
		Conn: w.nc, JS: w.js, API: jetstream.DefaultAPIPrefix, Service: "relay", Instance: "one", Log: cfg.Log, Stream: "JOBS", Durable: name,
		Book:  func() *catchup.Book { return catchup.NewBook(w.ledgers) },
		Wants: func() []catchup.Want { return wants }, Routes: func() []string { return []string{name} },
	})
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

// made looks at a durable, makes it, and has so many messages handled by it.
func (w *world) made(d *Durable, handled int) jetstream.Consumer {
	w.t.Helper()
	w.do(d.Look(w.t.Context()))
	c, err := d.Make(w.t.Context())
	w.do(err)
	if handled > 0 {
		batch, err := c.Fetch(handled, jetstream.FetchMaxWait(5*time.Second))
		w.do(err)
		for m := range batch.Messages() {
			w.do(m.DoubleAck(w.t.Context()))
		}
	}
	return c
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want it to say %q", err, part)
		}
	}
}

func TestLook_aStreamThatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 0)
	err := w.durable("billing", "", func(c *Config) { c.Stream = "NONE" }, "jobs.>").Look(t.Context())
	var missing *MissingStream
	if !errors.As(err, &missing) || missing.Name != "NONE" || !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("error %v", err)
	}
	wantError(t, err, "stream NONE does not exist", "nats stream add NONE")
}

// Where a durable begins that does not exist yet has to be chosen as soon as there is a choice.
func TestLook_theStartIsChosen(t *testing.T) {
	t.Parallel()
	empty := newWorld(t, jetstream.LimitsPolicy, 0)
	empty.do(empty.durable("billing", "", nil, "jobs.>").Look(t.Context()))
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	wantError(t, w.durable("billing", "", nil, "jobs.>").Look(t.Context()), "start: stream JOBS already holds 10 messages for jobs.>", "durable billing does not exist")
	w.do(w.durable("billing", "", nil, "jobs.none").Look(t.Context()))
	for policy, want := range map[string]Waiting{"all": {5, 5}, "new": {5, 0}} {
		d := w.durable("billing", policy, nil, "jobs.1")
		w.do(d.Look(t.Context()))
		if d.Waiting != want || d.Have != nil || len(d.Again) > 0 {
			t.Errorf("%s: %+v wait, %v again", policy, d.Waiting, d.Again)
		}
	}
	if n := w.durables(); n != 0 {
		t.Errorf("looking left %d durables", n)
	}
}

func (w *world) durables() (n int) {
	w.t.Helper()
	list := w.stream.ListConsumers(w.t.Context())
	for range list.Info() {
		n++
	}
	w.do(list.Err())
	return n
}

// What was handled before is told, and counted, whatever became of the durable that it was handled from.
func TestLook_whatWasHandledIsBroughtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	old := w.made(w.durable("old", "all", nil, "jobs.>"), 6)
	renamed := w.durable("renamed", "all", nil, "jobs.>")
	w.do(renamed.Look(t.Context()))
	if len(renamed.Again) != 1 || renamed.Again[0].Messages != 6 || renamed.Again[0].Durable != "old" || !renamed.Again[0].All || !slices.Equal(renamed.Again[0].Routes, []string{"old"}) {
		t.Errorf("renamed: %+v", renamed.Again)
	}
	fresh := w.durable("renamed", "new", nil, "jobs.>")
	w.do(fresh.Look(t.Context()))
	if len(fresh.Again) != 0 {
		t.Errorf("with start: new: %+v", fresh.Again)
	}
	half := w.durable("half", "all", nil, "jobs.1")
	w.do(half.Look(t.Context()))
	if len(half.Again) != 1 || half.Again[0].Messages != 3 {
		t.Errorf("one of two subjects: %+v", half.Again)
	}
	info, err := old.Info(t.Context())
	w.do(err)
	w.noted("old", info.AckFloor.Stream)
	w.do(w.stream.DeleteConsumer(t.Context(), "old"))
	anew := w.durable("old", "all", nil, "jobs.>")
	w.do(anew.Look(t.Context()))
	if len(anew.Again) != 1 || !anew.Again[0].Deleted || anew.Again[0].Messages != 6 || anew.Again[0].Next != 7 {
		t.Errorf("deleted: %+v", anew.Again)
	}
}

// Another service handles the same messages for itself, while it does.
func TestLook_anotherServiceHandlesThemForItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	theirs := w.durable("theirs", "all", func(c *Config) {
		c.Provided = func() provision.Durable {
			return provision.Durable{Name: "theirs", AckWait: time.Second, Mark: provision.Mark{Service: "them", Routes: map[string][]string{"x": {"jobs.>"}}}}
		}
	}, "jobs.>")
	c := w.made(theirs, 10)
	again := func() int {
		d := w.durable("ours", "all", nil, "jobs.>")
		w.do(d.Look(t.Context()))
		return len(d.Again)
	}
	if again() != 1 {
		t.Error("nobody pulls from it: the route may have moved here")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Next(jetstream.FetchContext(ctx))
	}()
	for deadline := time.Now().Add(10 * time.Second); ; {
		info, err := c.Info(t.Context())
		w.do(err)
		if info.NumWaiting > 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if again() != 0 {
		t.Error("it pulls: these are messages for both")
	}
	cancel()
	<-done
}

// A durable that relay did not make, or made otherwise, is refused unless the operator has said that it may be changed.
func TestUse_aDurableThatDiffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 3)
	_, err := w.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxDeliver: 3})
	w.do(err)
	var refused differs
	if err := w.durable("theirs", "all", nil, "jobs.>").Look(t.Context()); !errors.As(err, &refused) || !strings.Contains(refused.Error(), "ack_wait is 1s, not 30s") {
		t.Errorf("error %v", err)
	}
	adopting := w.durable("theirs", "all", func(c *Config) { c.Adopt = true }, "jobs.>")
	w.do(adopting.Look(t.Context()))
	c, err := adopting.Use(t.Context(), adopting.Have)
	w.do(err)
	if have := c.CachedInfo().Config; have.AckWait != 30*time.Second || provision.MarkOf(have.Metadata).Service != "relay" {
		t.Errorf("%+v", have)
	}
	same := w.durable("theirs", "all", nil, "jobs.>")
	w.do(same.Look(t.Context()))
	if c, err := same.Use(t.Context(), same.Have); err != nil || c != same.Have {
		t.Errorf("one that is as wanted: %v", err)
	}
}

// A durable that relay made gets the subject that a route wants now. What it has passed of it is counted as handled when somebody else handled it.
func TestUse_aDurableIsWidened(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	w.made(w.durable("shared", "all", nil, "jobs.1"), 5)
	w.made(w.durable("other", "all", nil, "jobs.0"), 5)
	unsaid := w.durable("shared", "", nil, "jobs.1", "jobs.0")
	wantError(t, unsaid.Look(t.Context()), "start: stream JOBS already holds 5 messages for jobs.0", "which durable shared has passed")
	d := w.durable("shared", "all", nil, "jobs.1", "jobs.0")
	w.do(d.Look(t.Context()))
	if len(d.Again) != 1 || d.Again[0].Durable != "other" || d.Again[0].Messages != 5 {
		t.Errorf("again: %+v", d.Again)
	}
	c, err := d.Use(t.Context(), d.Have)
	w.do(err)
	if f := provision.Filters(c.CachedInfo().Config); len(f) != 2 {
		t.Errorf("filters %v", f)
	}
}

// An ack wait that is lowered beside an instance that extends its leases by the longer one would have its messages handled twice.
func TestUse_aLowerAckWaitBesideSomebodyWhoPulls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 0)
	c := w.made(w.durable("billing", "all", nil, "jobs.>"), 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Next(jetstream.FetchContext(ctx))
	}()
	defer func() { cancel(); <-done }()
	lower := w.durable("billing", "all", func(c *Config) {
		provided := c.Provided
		c.Provided = func() provision.Durable { d := provided(); d.AckWait = time.Second; return d }
		c.FormerAckWait = func(time.Duration) time.Duration { return 30 * time.Second }
	}, "jobs.>")
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		w.do(lower.Look(t.Context()))
		if lower.Have.CachedInfo().NumWaiting > 0 {
			_, err = lower.Use(t.Context(), lower.Have)
			break
		}
	}
	wantError(t, err, "ack_wait is 30s, not 1s", "another instance pulls")
}

// Of a work queue only one consumer may have a subject: who has it is said.
func TestLook_aWorkQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.WorkQueuePolicy, 4)
	_, err := w.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "theirs", FilterSubject: "jobs.1", AckPolicy: jetstream.AckExplicitPolicy})
	w.do(err)
	wantError(t, w.durable("billing", "all", nil, "jobs.>").Look(t.Context()), "stream JOBS is a work queue", "consumer theirs has jobs.1", "durable: theirs")
	d := w.durable("billing", "all", nil, "jobs.0")
	w.do(d.Look(t.Context()))
	if d.Waiting.Chosen == 0 || len(d.Again) > 0 {
		t.Errorf("%+v, again %v", d.Waiting, d.Again)
	}
}

// A start that fails takes back only what it made, and what nobody uses.
func TestUnmake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 2)
	first := w.durable("billing", "all", nil, "jobs.>")
	w.do(first.Look(t.Context()))
	second := w.durable("billing", "all", nil, "jobs.1")
	w.do(second.Look(t.Context()))
	c, err := first.Make(t.Context())
	w.do(err)
	created := c.CachedInfo().Created
	if c, err := second.Make(t.Context()); err != nil || second.Made || !c.CachedInfo().Created.Equal(created) {
		t.Errorf("the slower one: made %v, error %v", second.Made, err)
	}
	w.do(second.Unmake(t.Context(), created))
	w.do(first.Unmake(t.Context(), created.Add(-time.Second)))
	if n := w.durables(); n != 1 {
		t.Fatalf("%d durables, want 1", n)
	}
	w.do(first.Unmake(t.Context(), created))
	if n := w.durables(); n != 0 {
		t.Errorf("%d durables, want 0", n)
	}
	used := w.durable("billing", "all", nil, "jobs.>")
	c = w.made(used, 1)
	w.do(used.Unmake(t.Context(), c.CachedInfo().Created))
	if n := w.durables(); n != 1 {
		t.Error("a durable that has delivered something was removed")
	}
}

func TestListings_oneListForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 3)
	l := new(Listings)
	of := func() int {
		list, last, err := l.Of(t.Context(), w.stream)
		w.do(err)
		if last != 3 {
			t.Errorf("last message %d, want 3", last)
		}
		return len(list)
	}
	of()
	w.made(w.durable("billing", "all", nil, "jobs.>"), 0)
	if n := of(); n != 0 {
		t.Errorf("%d durables: the list was made anew at once", n)
	}
	l.Forget()
	if n := of(); n != 1 {
		t.Errorf("%d durables after a change, want 1", n)
	}
}

// common of two lists matches exactly what both match, and none of its patterns covers another one.
func TestCommon_isTheIntersection(t *testing.T) {
	t.Parallel()
	token := rapid.SampledFrom([]string{"a", "b", "*"})
	pattern := rapid.Custom(func(t *rapid.T) string {
		tokens := rapid.SliceOfN(token, 1, 3).Draw(t, "tokens")
		if rapid.Bool().Draw(t, "tail") {
			tokens = append(tokens, ">")
		}
		return strings.Join(tokens, ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SliceOfN(pattern, 1, 3).Draw(t, "a"), rapid.SliceOfN(pattern, 1, 3).Draw(t, "b")
		common := common(a, b)
		matches := func(list []string, literal string) bool {
			return slices.ContainsFunc(list, func(p string) bool { return subject.Matches(p, literal) })
		}
		literal := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 4).Draw(t, "literal"), ".")
		if got, want := matches(common, literal), matches(a, literal) && matches(b, literal); got != want {
			t.Fatalf("%v and %v: %v matches %s: %v, want %v", a, b, common, literal, got, want)
		}
		for i, p := range common {
			for j, q := range common {
				if i != j && subject.Covers(p, q) {
					t.Fatalf("%v: %s covers %s", common, p, q)
				}
			}
		}
	})
}
