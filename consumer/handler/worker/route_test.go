package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// One message among many ends the process that it runs in, each time. It is dead-lettered; all others are handled, and none of
// them spends an attempt: with one try for each, a bystander that was charged would be dead-lettered too.
func TestRoute_poison(t *testing.T) {
	const messages, poison = 400, 57
	for name, cfg := range map[string]struct {
		per                 string
		processes, inFlight int
	}{
		"a pool, one at a time": {PerPool, 2, 1},
		"a pool, several":       {PerPool, 2, 8},
		"a process per key":     {PerKey, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			nc := natstest.Start(t).Conn(t)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*"}}); err != nil {
				t.Fatal(err)
			}
			for i := range messages {
				body := "ack"
				if i == poison {
					body = "exit:1"
				}
				if _, err := js.Publish(t.Context(), fmt.Sprintf("orders.%d", i%5), []byte(body)); err != nil {
					t.Fatal(err)
				}
			}
			rt := consumer.Route{
				Name: "billing", Subjects: []string{"orders.*"}, Start: consumer.Start{Policy: "all"}, Concurrency: 16,
				Retry:      consumer.Retry{MaxAttempts: 1, Backoff: supervisor.Backoff{Min: 10 * time.Millisecond}},
				Supervisor: supervisor.Config{Restart: supervisor.Backoff{Min: 10 * time.Millisecond}},
			}
			c := config(t, "ready")
			c.Ready, c.Per, c.Processes, c.InFlight = true, cfg.per, cfg.processes, cfg.inFlight
			if cfg.per == PerKey {
				keys, err := NewKeys(c, quiet())
				if err != nil {
					t.Fatal(err)
				}
				rt.Factory, rt.Check, rt.Outside = keys.New, keys.Check, true
			} else if rt.Handler, err = New(c, quiet()); err != nil {
				t.Fatal(err)
			}
			r, err := consumer.New(nc, consumer.Config{Logger: quiet()}, rt)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- r.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}()
			await(t, "the durable has nothing left", func() bool {
				d, err := js.Consumer(t.Context(), "ORDERS", "billing")
				if err != nil {
					return false
				}
				info, err := d.Info(t.Context())
				return err == nil && info.AckFloor.Stream == messages
			})
			dead, err := js.Stream(t.Context(), "RELAY_DLQ")
			if err != nil {
				t.Fatal(err)
			}
			info, err := dead.Info(t.Context())
			if err != nil || info.State.Msgs != 1 {
				t.Fatalf("%d dead letters, %v", info.State.Msgs, err)
			}
			letter, err := dead.GetMsg(t.Context(), info.State.FirstSeq)
			if err != nil || string(letter.Data) != "exit:1" {
				t.Errorf("%v, %v", letter, err)
			}
		})
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * long); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not so: %s", what)
}
