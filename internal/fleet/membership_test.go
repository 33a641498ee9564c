package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

// Nothing is written before something needs the fleet. What keeps the instance from joining is told until it has joined.
func TestMembership_joinsOnceNeeded(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	var tries atomic.Int64
	away := errors.New("the bucket is away")
	mayJoin := make(chan struct{})
	m := NewMembership(func(ctx context.Context) (*Fleet, error) {
		if tries.Add(1) == 1 {
			return nil, nats.ErrTimeout
		}
		select {
		case <-mayJoin:
			return Join(ctx, js, Config{Service: "relay", Instance: "a", Version: "v1"})
		default:
			return nil, errors.Join(nats.ErrTimeout, away)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	time.Sleep(50 * time.Millisecond)
	m.Renew() // nobody is told
	if tries.Load() != 0 || m.Needed() || m.Now() != nil || m.Changed() != nil {
		t.Fatalf("it joined, and nothing needs it: %d tries", tries.Load())
	}
	m.Need()
	m.Need()
	var first time.Time
	for since, err := m.Trouble(); !errors.Is(err, away); since, err = m.Trouble() {
		if first.IsZero() && err != nil {
			first = since
		}
		time.Sleep(time.Millisecond)
	}
	if since, _ := m.Trouble(); first.IsZero() || !since.Equal(first) {
		t.Errorf("in trouble since %v, and first said since %v", since, first)
	}
	close(mayJoin)
	f := m.Await(t.Context())
	if f == nil || m.Now() != f || !m.Needed() {
		t.Fatalf("it did not join: %v", f)
	}
	changed := m.Changed()
	m.Renew()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Error("it did not tell of itself, or does not see that")
	}
	for !f.Valid() {
		time.Sleep(time.Millisecond)
	}
	if _, err := m.Trouble(); err != nil {
		t.Errorf("joined, and in trouble: %v", err)
	}
	if _, ok := <-m.Joined(); ok {
		t.Error("Joined is not closed")
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if NewMembership(nil).Await(over) != nil {
		t.Error("a fleet without a join")
	}
}
