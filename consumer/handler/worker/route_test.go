package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/client"
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
			nc, js := orders(t)
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
			var err error
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
			defer run(t, r)()
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

// Good messages come behind many that end their process, and beside them, in processes that have several at once. They are not held up as if they had
// failed themselves.
func TestRoute_regressionGoodBesideManyCrashes(t *testing.T) {
	nc, js := orders(t)
	const bad, good = 200, 40
	cfg, done := config(t, "ready"), t.TempDir()
	for i := range bad + good {
		subject, body := fmt.Sprintf("orders.bad.%d", i), "exit:1"
		if i >= bad {
			subject, body = "orders.good", fmt.Sprintf("touch:%s;ack", filepath.Join(done, fmt.Sprint(i)))
		}
		if _, err := js.PublishAsync(subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	cfg.Ready, cfg.Processes, cfg.InFlight = true, 2, 8
	h, err := New(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	r, err := consumer.New(nc, consumer.Config{Logger: quiet()}, consumer.Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: consumer.Start{Policy: "all"}, Concurrency: cfg.Concurrency(), Handler: h,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, r)()
	// It took one second for the first 36 once, and a minute for the others.
	natstest.Eventually(t, "all good messages are handled", func() bool {
		files, err := os.ReadDir(done)
		return err == nil && len(files) == good
	})
}

// orders is a server with a stream of orders.
func orders(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// run runs r until the function that it returns is called.
func run(t *testing.T, r *consumer.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
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

// The only process is busy. Messages that wait for it are not started when their deadline is over or their caller has gone meanwhile.
func TestRoute_regressionAsksLast(t *testing.T) {
	nc, _ := orders(t)
	cfg := config(t, "ready")
	cfg.Ready, cfg.Processes, cfg.InFlight = true, 1, 1
	h, err := New(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	r, err := consumer.New(nc, consumer.Config{Logger: quiet()}, consumer.Route{
		Name: "billing", Subjects: []string{"orders.*"}, Concurrency: 4, Handler: h,
		Caller: consumer.Caller{Reply: []string{"_INBOX.>"}, Interest: []string{"_INBOX.>"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, r)()
	await(t, "it is ready", func() bool { return r.Ready() == nil })
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// What starts writes its name to a file.
	started := func(name string) bool { _, err := os.Stat(filepath.Join(cfg.Dir, name)); return err == nil }
	begin := func(ctx context.Context, subject, acts string, header nats.Header) <-chan error {
		done := make(chan error, 1)
		if err := c.Start(ctx, &nats.Msg{Subject: subject, Data: []byte(acts), Header: header}, func(_ *client.Result, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		return done
	}
	busy := begin(t.Context(), "orders.1", "touch:busy;sleep:2s;ack", nil)
	await(t, "the process is busy", func() bool { return started("busy") })
	gives, giveUp := context.WithCancel(t.Context())
	unwanted := begin(gives, "orders.2", "touch:unwanted;ack", nil)
	late := begin(t.Context(), "orders.3", "touch:late;ack", nats.Header{"Relay-Expires-In": {"1s"}})
	wanted := begin(t.Context(), "orders.4", "touch:wanted;ack", nil)
	time.AfterFunc(500*time.Millisecond, giveUp)
	if err := <-unwanted; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for what, done := range map[string]<-chan error{"busy": busy, "wanted": wanted} {
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := <-late; !errors.Is(err, client.ErrExpired) {
		t.Errorf("late: %v", err)
	}
	if started("unwanted") || started("late") || !started("wanted") {
		t.Errorf("started: unwanted %v, late %v, wanted %v", started("unwanted"), started("late"), started("wanted"))
	}
}
