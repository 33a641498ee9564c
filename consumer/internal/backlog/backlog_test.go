package backlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

type world struct {
	*Server
	t      *testing.T
	js     jetstream.JetStream
	stream jetstream.Stream
}

// newWorld has a stream for jobs.>.
func newWorld(t *testing.T) *world {
	s := natstest.Start(t)
	w := &world{t: t, js: s.JetStream(t)}
	var err error
	w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}, AllowDirect: true})
	w.do(err)
	w.Server = &Server{Conn: s.Conn(t), API: "$JS.API.", Streams: looks.New(w.js), Age: func() time.Duration { return 0 }}
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(subject string, header nats.Header) (seq uint64, stored time.Time) {
	w.t.Helper()
	a, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: subject, Header: header})
	w.do(err)
	m, err := w.stream.GetMsg(w.t.Context(), a.Sequence)
	w.do(err)
	return a.Sequence, m.Time
}

// How many match, and when the oldest was published: in the retry stream its headers say that.
func TestServer_Count(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if c, err := w.Count(t.Context(), "JOBS", "jobs.a.>"); err != nil || c != (Counted{}) {
		t.Errorf("of none: %+v, %v", c, err)
	}
	w.publish("jobs.b.0", nil)
	_, first := w.publish("jobs.a.0", nil)
	for i := range 4 {
		w.publish(fmt.Sprint("jobs.a.", i), nil)
	}
	if c, err := w.Count(t.Context(), "JOBS", "jobs.a.>"); err != nil || c.N != 5 || !c.Oldest.Equal(first) {
		t.Errorf("%+v, %v; the first was stored at %v", c, err, first)
	}
	origin := retry.Origin{Stream: "ORDERS", Subject: "orders.eu", Sequence: 7, Time: time.Now().Add(-time.Hour).UTC()}
	w.publish("jobs.parked.0", retry.Wrap(origin, nil))
	if c, err := w.Count(t.Context(), "JOBS", "jobs.parked.>"); err != nil || c.N != 1 || !c.Oldest.Equal(origin.Time) {
		t.Errorf("of a parked one: %+v, %v; it was published at %v", c, err, origin.Time)
	}
	if _, err := w.Count(t.Context(), "NONE", ">"); err == nil {
		t.Error("no stream, and no error")
	}
}

// It is counted at once, soon after this instance stored more, and not while nothing can have changed.
func TestCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var c Count
	if c.Last() != nil {
		t.Error("counted before it was")
	}
	w.publish("jobs.a", nil)
	c.Update(t.Context(), w.Server, 0, "JOBS", "jobs.>")
	if n := c.Last(); n == nil || n.N != 1 {
		t.Fatalf("at first: %+v", n)
	}
	w.publish("jobs.a", nil)
	c.Update(t.Context(), w.Server, 0, "JOBS", "jobs.>")
	if n := c.Last(); n.N != 1 {
		t.Errorf("before its time: %+v", n)
	}
	natstest.Eventually(t, "the one that this instance stored is counted", func() bool {
		c.Update(t.Context(), w.Server, 1, "JOBS", "jobs.>")
		return c.Last().N == 2
	})
	c.soon = time.Time{}
	c.Update(t.Context(), w.Server, 2, "JOBS", "jobs.>")
	if n := c.Last(); n.N != 2 || !c.next.After(time.Now().Add(countEvery/2)) {
		t.Errorf("nothing changed: %+v, next %v", n, c.next)
	}
	c.soon = time.Time{}
	c.Update(t.Context(), w.Server, 3, "NONE", "jobs.>")
	if n := c.Last(); n.N != 2 {
		t.Errorf("without an answer: %+v", n)
	}
}

// The oldest is the first above the floor of any of the patterns; nobody is asked while nothing waits, or while the floor stays.
func TestOldest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var o Oldest
	if _, known := o.Last(); known {
		t.Error("known before a look")
	}
	o.Update(t.Context(), nil, &Look{Floor: 3}, "JOBS", nil) // no server is asked
	if at, known := o.Last(); !known || !at.IsZero() {
		t.Errorf("of nothing that waits: %v, %v", at, known)
	}
	w.publish("jobs.other", nil)
	first, atFirst := w.publish("jobs.b", nil)
	_, atSecond := w.publish("jobs.a", nil)
	patterns := []string{"jobs.a", "jobs.b", "jobs.c"}
	o.Update(t.Context(), w.Server, &Look{Pending: 2}, "JOBS", patterns)
	if at, _ := o.Last(); !at.Equal(atFirst) {
		t.Errorf("%v, want %v", at, atFirst)
	}
	o.soon = time.Time{}
	o.Update(t.Context(), nil, &Look{Pending: 2}, "JOBS", patterns) // no server is asked
	o.Update(t.Context(), w.Server, &Look{Outstanding: 1, Floor: first}, "JOBS", patterns)
	if at, _ := o.Last(); !at.Equal(atSecond) {
		t.Errorf("after the first was settled: %v, want %v", at, atSecond)
	}
	if !o.soon.After(time.Now()) {
		t.Error("it may be asked for again at once")
	}
	o.soon = time.Time{}
	o.Update(t.Context(), w.Server, &Look{Pending: 1, Floor: first + 5}, "NONE", patterns)
	if at, _ := o.Last(); !at.Equal(atSecond) || o.soon.Before(time.Now().Add(countEvery/2)) {
		t.Errorf("without an answer: %v, again at %v", at, o.soon)
	}
}
