package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// A route with partitions is one route to everybody outside of the engine, and here one for each partition: an ordered route that one instance at a
// time has, on the durable of the partition in a stream of relay's own (package partition). Several instances share them, and each key is in one of them. The
// parts begin and end by changes, as other routes do.
//
// When the number of partitions, the key or the subjects change, there is a new generation (package generations). The parts of former ones then hand over
// what they still have, in the order of its keys, and end.

// IsCopy tells whether the handler is that of another route, which is checked there.
func (r Spec) IsCopy() bool { return r.Part.IsCopy() }

// HandsOver tells whether the route hands its messages over to another generation of partitions.
func (rt *Route) HandsOver() bool { return rt.Spec.Part.HandsOver() }

// Name is what the route is called outside of the engine: a partition is called as its route.
func (rt *Route) Name() string { return rt.Spec.calledName() }

// calledName is what a route of this specification is called outside of the engine.
func (r Spec) calledName() string {
	if r.Part != nil {
		return r.Part.Route
	}
	return r.Name
}

// logger has the lines of the route name it.
func (r Spec) logger(log *slog.Logger) *slog.Logger {
	if p := r.Part; p != nil {
		return log.With("route", p.Route, "partition", p.Number, "generation", p.Of.Number)
	}
	return log.With("route", r.Name)
}

// InWords names the route in a sentence.
func (r Spec) InWords() string {
	if p := r.Part; p != nil {
		return fmt.Sprintf("%s, partition %d of %d,", p.Route, p.Number, p.Of.Count)
	}
	return r.Name
}

// OriginStream is the user's stream that the route reads; empty while that is not found.
func (rt *Route) OriginStream() string {
	if p := rt.Spec.Part; p != nil {
		return p.Stream
	}
	if p := rt.Place.Load(); p != nil {
		return p.Main.Stream
	}
	return ""
}

// Layout is how the route is to be divided, but for the stream, which is found when it is.
func (r Spec) Layout() partition.Layout {
	return partition.Layout{Count: r.Partitions, Key: r.Key, Subjects: r.Subjects, Durable: r.Durable}
}

// handOver puts a message of a former generation into its partition of the newest one.
func (m *Message) handOver(ctx context.Context) supervise.Verdict {
	if err := m.route().formers.Wait(ctx, m.route().Home.JS); err != nil {
		return supervise.Verdict{Kind: supervise.Snooze, Delay: generations.FormersAgain, Err: err}
	}
	if m.Delivery.FencedAt(time.Now()) || !m.Source.MayStart() { // meanwhile
		return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
	}
	origin := m.From()
	origin.Attempts, origin.FirstFailure, origin.LastError = m.Attempts, m.FirstFailure, settle.ErrorText(m.LastErr)
	origin.Due = m.due
	failpoint.At("handing over")
	if err := m.route().Spec.Part.To.Put(ctx, m.route().Home.JS, m.Subject, retry.Wrap(origin, m.Header), m.Data); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return supervise.Verdict{Kind: supervise.Dead, Err: fmt.Errorf(
				"it cannot be handed over to %d partitions: with the headers that name its origin it is larger than max_payload of the server (%w)", m.route().Spec.Part.To.Count, err)}
		}
		return supervise.Verdict{Kind: supervise.Snooze, Delay: intake.IntoPartitionAgain, Err: err}
	}
	failpoint.At("handed over")
	m.handedOver = true
	return supervise.Verdict{Kind: supervise.Ack}
}
