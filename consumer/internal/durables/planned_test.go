package durables

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/planned"
	"github.com/relaymq/relay/internal/provision"
)

// planned is what is said of a durable of the route of its name.
func (w *world) planned(d *Durable, route string) planned.Durable {
	w.t.Helper()
	p, err := d.Planned(w.t.Context(), []string{route}, d.Look(w.t.Context()))
	w.do(err)
	return p
}

func (w *world) wantPlanned(d *Durable, route string, want planned.Durable) {
	w.t.Helper()
	want.Stream, want.Durable, want.Routes = "JOBS", d.cfg.Durable, []string{route}
	if got := w.planned(d, route); !reflect.DeepEqual(got, want) {
		w.t.Errorf("planned %+v\nwant    %+v", got, want)
	}
}

func TestPlanned_aDurableThatIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	w.wantPlanned(w.durable("billing", "all", nil, "jobs.1"), "billing", planned.Durable{Does: planned.Made, Start: "all", Waits: 5})
	w.wantPlanned(w.durable("billing", "new", nil, "jobs.1"), "billing", planned.Durable{Does: planned.Made, Start: "new", Skipped: 5})
	if p := w.durable("billing", "all", nil, "jobs.1").PlannedAnew([]string{"a", "b"}); p.Does != planned.Made || p.Start != "all" || len(p.Routes) != 2 {
		t.Errorf("on a stream that is not there: %+v", p)
	}
	w.made(w.durable("old", "all", nil, "jobs.1"), 3)
	if p := w.planned(w.durable("billing", "all", nil, "jobs.1"), "billing"); len(p.Again) != 1 || p.Again[0].Messages != 3 || !p.Repeats() {
		t.Errorf("one that repeats: %+v", p)
	}
	if n := w.durables(); n != 1 {
		t.Errorf("%d durables, want 1: to plan changes nothing", n)
	}
}

func TestPlanned_aDurableThatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	w.made(w.durable("shared", "all", nil, "jobs.1"), 3)
	w.wantPlanned(w.durable("shared", "all", nil, "jobs.1"), "shared", planned.Durable{Does: planned.Stays, Waits: 2})
	longer := w.durable("shared", "all", func(c *Config) {
		provided := c.Provided
		c.Provided = func() provision.Durable { d := provided(); d.AckWait = time.Minute; return d }
		c.FormerAckWait = func(have time.Duration) time.Duration { return have }
	}, "jobs.1")
	w.wantPlanned(longer, "shared", planned.Durable{
		Does: planned.Changed, Waits: 2, Why: []string{"ack_wait is 30s, not 1m0s", "which a reload changes, and a start refuses without --adopt"},
	})
	_, err := w.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second})
	w.do(err)
	refused := w.durable("theirs", "all", nil, "jobs.>")
	if p := w.planned(refused, "theirs"); p.Does != planned.Refused || len(p.Why) != 1 || p.Start != "" {
		t.Errorf("one that differs: %+v", p)
	}
}

// What a durable goes on to deliver, although no route of the configuration wants it, is said; --adopt ends it.
func TestPlanned_whatNoRouteWants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 4)
	w.made(w.durable("shared", "all", nil, "jobs.0", "jobs.1"), 4)
	next := func(change func(*Config)) planned.Durable {
		return w.planned(w.durable("shared", "all", change, "jobs.1"), "shared")
	}
	if p := next(nil); len(p.Unwanted) != 1 || p.Unwanted[0] != "jobs.0 (route shared)" || p.Service != "" {
		t.Errorf("%+v", p)
	}
	if p := next(func(c *Config) { c.Adopt = true }); len(p.Unwanted) != 0 || p.Does != planned.Changed {
		t.Errorf("with --adopt: %+v", p)
	}
	theirs := provision.Durable{Name: "theirs", AckWait: 30 * time.Second, Mark: provision.Mark{Service: "them", Routes: map[string][]string{"x": {"jobs.1"}}}}
	_, err := w.stream.CreateConsumer(t.Context(), theirs.Wanted([]string{"jobs.>"}))
	w.do(err)
	if p := w.planned(w.durable("theirs", "all", nil, "jobs.1"), "theirs"); p.Service != "them" || len(p.Unwanted) != 0 {
		t.Errorf("of another service: %+v", p)
	}
}

// What a durable has passed that a route wants now is counted, by the route's start.
func TestPlanned_whatItHasPassed(t *testing.T) {
	t.Parallel()
	for _, retention := range []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy} {
		w := newWorld(t, retention, 10)
		c := w.made(w.durable("shared", "all", nil, "jobs.1"), 5)
		catches := func(policy string, subjects ...string) []planned.CatchUp {
			return w.planned(w.durable("shared", policy, nil, append(subjects, "jobs.1")...), "shared").CatchUp
		}
		want := []planned.CatchUp{{Route: "shared", Subjects: "jobs.0", Messages: 5}}
		if list := catches("all", "jobs.0", "jobs.none"); !reflect.DeepEqual(list, want) {
			t.Errorf("%v: %+v", retention, list)
		}
		if retention == jetstream.WorkQueuePolicy {
			continue
		}
		if list := catches("new", "jobs.0"); len(list) != 1 || list[0].Messages != 0 || list[0].Skipped != 5 {
			t.Errorf("from now on: %+v", list)
		}
		if list := catches("all", "jobs.>"); len(list) != 1 || list[0].Messages != 5 {
			t.Errorf("without what it has had: %+v", list)
		}
		// One that had these subjects, and gave them up, goes on where it was. Of another one of its name nothing is known.
		note := func(created time.Time) {
			book := catchup.NewBook(w.ledgers)
			_, err := book.Change(t.Context(), "JOBS", "shared", func(*catchup.Record) (*catchup.Record, error) {
				return &catchup.Record{Created: created, Ranges: []catchup.Range{{Pattern: "jobs.0", Left: true, Had: 4}}}, nil
			})
			w.do(err)
		}
		created := c.CachedInfo().Created
		note(created)
		if list := catches("all", "jobs.0"); len(list) != 1 || list[0].Messages != 3 || list[0].Skipped != 0 {
			t.Errorf("goes on: %+v", list)
		}
		note(created.Add(-time.Second))
		if list := catches("all", "jobs.0"); !reflect.DeepEqual(list, want) {
			t.Errorf("another one of its name: %+v", list)
		}
		w.ledgers = nil // a service that never ran has none
		if list := catches("all", "jobs.0"); !reflect.DeepEqual(list, want) {
			t.Errorf("without an account: %+v", list)
		}
	}
}

func TestPlanned_theServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	w.made(w.durable("shared", "all", nil, "jobs.1"), 5)
	d := w.durable("shared", "all", nil, "jobs.0", "jobs.1")
	w.do(d.Look(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Planned(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
