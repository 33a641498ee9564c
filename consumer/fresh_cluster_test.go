package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Three instances that start at once on a fresh cluster, each on a server of its own: a server that has not heard of a stream, a bucket or a durable that
// another instance made a moment ago says 404, and that ended an instance.
func TestStart_regressionInstancesAtOnceOnAFreshCluster(t *testing.T) {
	t.Parallel()
	nodes, w := cluster(t)
	for round := range 3 {
		service := fmt.Sprintf("svc%d", round)
		subject := fmt.Sprintf("orders%d", round)
		w.eventually("the stream is made", func() bool {
			_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS" + service, Subjects: []string{subject + ".>"}, Replicas: 3})
			return err == nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, len(nodes))
		var all []*Relay
		for i, n := range nodes {
			nop := HandlerFunc(func(context.Context, *Msg) error { return nil })
			routes := []Route{
				{Name: "all", Subjects: []string{subject + ".all.>"}, Handler: nop},
				{Name: "one", Subjects: []string{subject + ".one.>"}, Instances: InstancesOne, Handler: nop},
			}
			r, err := New(n.Conn(t), Config{
				Service: service, Instance: fmt.Sprint("i", i), Replicas: 3, Events: Events{Store: true}, Drain: time.Second,
				Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)).With("round", round, "at", i),
			}, routes...)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
			go func() { ended <- r.Run(ctx) }()
		}
		w.eventually("all are ready, or one has ended", func() bool {
			if len(ended) > 0 {
				return true
			}
			for _, r := range all {
				if r.Ready() != nil {
					return false
				}
			}
			return true
		})
		cancel()
		for range nodes {
			if err := <-ended; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
}
