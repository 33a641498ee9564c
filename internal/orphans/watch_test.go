package orphans

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// looking is the watch of an instance with the route billing on stream ORDERS.
type looking struct {
	*Watch
	t     *testing.T
	js    jetstream.JetStream
	log   bytes.Buffer
	count int // how often messages were counted
}

func look(t *testing.T) *looking {
	t.Helper()
	w := &looking{Watch: NewWatch(), t: t, js: natstest.Start(t).JetStream(t)}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	retries, err := retry.OpenStream(t.Context(), w.js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Found()) != 0 {
		t.Error("it has found something before it looked")
	}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.Begin(WatchConfig{
		Search:  Search{JS: w.js, Service: "relay", Answers: func(context.Context, string) (bool, error) { return false, nil }},
		Retries: retries, Log: log,
		Reads: func() []Reads {
			return []Reads{{
				Stream: "ORDERS", Durable: "billing", Routes: [][2]string{{"billing", "ORDERS"}}, Log: log,
				RouteOf: func(subject string) string {
					if strings.HasPrefix(subject, "orders.eu") {
						return "billing"
					}
					return ""
				},
			}}
		},
		Known:   func(_, _, durable string) bool { return durable == "billing" },
		Divides: func(*partition.Stream) bool { return false },
		Count: func(ctx context.Context, stream, filter string) (n uint64, err error) {
			w.count++
			s, err := w.js.Stream(ctx, stream)
			if err != nil {
				return 0, err
			}
			info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
			if err != nil {
				return 0, err
			}
			for _, k := range info.State.Subjects {
				n += k
			}
			return n, nil
		},
	})
	return w
}

func (w *looking) park(of string, n int) {
	w.t.Helper()
	for i := range n {
		if _, err := w.js.PublishAsync(fmt.Sprintf("relay.park.%s.%d-1", of, i), nil); err != nil {
			w.t.Fatal(err)
		}
		if i%1000 == 999 {
			<-w.js.PublishAsyncComplete()
		}
	}
	<-w.js.PublishAsyncComplete()
}

// A start beside a million retries had the server list all their subjects, page after page, which took it half of a core for ten seconds.
func TestWatch_regressionManyRetriesAreCountedAndNotListed(t *testing.T) {
	t.Parallel()
	w := look(t)
	own := map[[2]string]bool{{"billing", "ORDERS"}: true}
	if !w.allRetriesAreOf(t.Context(), own) {
		t.Error("an empty stream holds something of others")
	}
	w.park("billing.ORDERS", listedAtOnce)
	if !w.allRetriesAreOf(t.Context(), own) || w.count == 0 {
		t.Error("those of own routes are taken for others")
	}
	w.park("former.ORDERS", 1)
	if w.allRetriesAreOf(t.Context(), own) {
		t.Error("one of another route is not seen")
	}
	w.Find(t.Context())
	if list := w.Found(); len(list) != 1 || list[0].Route != "former" || list[0].Messages != 1 {
		t.Errorf("orphans %+v", list)
	}
}

// What no route wanted when it came goes to the route that wants it now, and a durable that nobody knows is named.
func TestWatch_find(t *testing.T) {
	t.Parallel()
	w := look(t)
	for seq, subject := range map[uint64]string{1: "orders.eu.1", 2: "orders.us.1"} {
		err := w.cfg.Retries.Bring(t.Context(), retry.Origin{
			Route: retry.NoRoute, Stream: "ORDERS", Consumer: "billing", Sequence: seq, Time: time.Now(), Subject: subject,
		}, nats.Header{}, nil, retry.Room{Messages: 10, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, durable := range []string{"billing", "former"} {
		if _, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{
			Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, Metadata: map[string]string{"relay.service": "relay", "relay.route." + durable: "orders.>"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	for w.found.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	text := fmt.Sprint(w.Found())
	if strings.Contains(text, "durable billing") || !strings.Contains(text, "durable former") {
		t.Errorf("found: %s", text)
	}
	if !strings.Contains(w.log.String(), "go to the routes that want them now\" count=1") {
		t.Errorf("log:\n%s", &w.log)
	}
}
