package consumer_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/relaytest"
	"github.com/relaymq/relay/supervisor"
)

// operated is a route that fails while it is told to, and says what it started.
func operated(broken *atomic.Bool, started chan string) consumer.Route {
	return consumer.Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry: consumer.Retry{MaxAttempts: 1, Backoff: supervisor.Backoff{Min: 10 * time.Millisecond}},
		Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			if started != nil {
				started <- m.Subject
			}
			if broken.Load() {
				return consumer.Dead(errors.New("no gateway"))
			}
			return nil
		}),
	}
}

// A program pauses a key and a route, whose messages wait while others go on, and resumes both at once.
func TestRelay_PauseAndResume(t *testing.T) {
	t.Parallel()
	started := make(chan string, 16)
	r := relaytest.Start(t, consumer.Config{}, operated(new(atomic.Bool), started))
	if err := r.Pause(t.Context(), "biling", ""); err == nil || err.Error() != `there is no route "biling" here` {
		t.Errorf("pause of a route that is not there: %v", err)
	}
	if err := r.Pause(t.Context(), "billing", "orders.eu"); err != nil {
		t.Fatal(err)
	}
	eu, us := r.Publish("orders.eu", "1"), r.Publish("orders.us", "2")
	us.Want(relaytest.Done)
	if err := r.Pause(t.Context(), "billing", ""); err != nil {
		t.Fatal(err)
	}
	if s := r.Status().Routes[0]; s.State != control.StatePaused || !strings.Contains(s.Why, "paused by an operator") {
		t.Errorf("a paused route is %s: %s", s.State, s.Why)
	}
	later := r.Publish("orders.us", "3")
	if n := len(started); n != 1 {
		t.Errorf("%d messages started while the key and then the route were paused, want that of the other key", n)
	}
	if err := r.Resume(t.Context(), "billing", ""); err != nil {
		t.Fatal(err)
	}
	later.Want(relaytest.Done)
	eu.Want(relaytest.Done)
}

// A program replays what failed, by one call that returns when all of it succeeded; what belongs to no route of it stays.
func TestRelay_Replay(t *testing.T) {
	t.Parallel()
	broken := new(atomic.Bool)
	broken.Store(true)
	r := relaytest.Start(t, consumer.Config{}, operated(broken, nil))
	if p, err := r.Replay(t.Context(), dlq.Job{}); err != nil || p.ID != "" || p.Total != 0 {
		t.Errorf("a replay of nothing: %+v, %v", p, err)
	}
	for what, job := range map[string]dlq.Job{"rate": {Rate: math.NaN()}, "rate:": {Rate: -1}, "stop_after": {StopAfter: 100}, "subject": {Subject: "orders.eu", Wait: true}} {
		if _, err := r.Replay(t.Context(), job); err == nil || !strings.HasPrefix(err.Error(), what) {
			t.Errorf("%+v: %v", job, err)
		}
	}
	sent := r.Publish("orders.eu", "1")
	sent.Want(relaytest.DeadLettered)
	broken.Store(false)
	p, err := r.Replay(t.Context(), dlq.Job{Filter: dlq.Filter{Route: "billing"}, Wait: true})
	if err != nil || p.Handed != 1 || p.Succeeded != 1 || p.ID == "" {
		t.Errorf("a replay: %+v, %v", p, err)
	}
	if got := sent.Want(relaytest.Done); len(got.Attempts) != 2 {
		t.Errorf("attempts with the replay: %v", got.Attempts)
	}
}
