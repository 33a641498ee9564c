package generations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/provision"
)

// Maker makes the streams of generations.
type Maker struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	API      string // the prefix of JetStream's API
	Service  string
	Replicas int
	Log      *slog.Logger
}

// Wanted is how a route is to be divided.
type Wanted struct {
	Route string
	partition.Layout
	// Origin finds the stream of the user, which the Layout then has. Nil: the Layout has it.
	Origin func(context.Context) (string, error)
	// Start is where a route begins that has neither partitions nor a durable.
	Start Start
}

// Start is where a route begins, as it is configured. The zero value says nothing of it.
type Start struct {
	Policy string    // "", "all", "new", "since" or "seq"
	Since  time.Time // for since
	Seq    uint64    // for seq
}

// at is where that is in a stream with that last sequence; false: nothing is said of it.
func (s Start) at(last uint64) (partition.Start, bool) {
	switch s.Policy {
	case "new":
		return partition.Start{Sequence: last + 1}, true
	case "seq":
		return partition.Start{Sequence: s.Seq}, true
	case "since":
		return partition.Start{Time: s.Since}, true
	case "all":
		return partition.Start{Sequence: 1}, true
	}
	return partition.Start{}, false
}

// Generation is what is wanted, as the generation of that number.
func (m Maker) Generation(w Wanted, number int) partition.Generation {
	return partition.Generation{Service: m.Service, Route: w.Route, Number: number, Layout: w.Layout}
}

// Check says why Next would not make a generation.
func (m Maker) Check(ctx context.Context, running []*partition.Stream, w Wanted) error {
	_, _, err := m.next(ctx, running, w)
	return err
}

// next is the generation after those that run, and where it begins.
func (m Maker) next(ctx context.Context, running []*partition.Stream, w Wanted) (g partition.Generation, start partition.Start, err error) {
	from, err := m.JS.Stream(ctx, w.Stream)
	if err != nil {
		return g, start, err
	}
	if err := Copyable(from.CachedInfo().Config); err != nil {
		return g, start, err
	}
	if n := len(running); n > 0 { // it begins when the former ones are through
		return m.Generation(w, running[n-1].Number+1), start, nil
	}
	start, err = m.Start(ctx, w, from)
	return m.Generation(w, 1), start, err
}

// Next makes the generation after those that run, or says why that cannot be. It returns those that run then.
func (m Maker) Next(ctx context.Context, running []*partition.Stream, w Wanted) ([]*partition.Stream, error) {
	g, start, err := m.next(ctx, running, w)
	if err != nil {
		return nil, err
	}
	made, err := g.Make(ctx, m.JS, start, m.Replicas)
	if err != nil {
		return nil, fmt.Errorf("making stream %s: %w", g.Name(), err)
	}
	m.Log.Info("made the stream of a route's partitions", "route", w.Route, "stream", g.Name(), "partitions", g.Count, "from", w.Stream, "start", start.String())
	return partition.Running(append(running, made)), nil
}

// Copyable says why a server cannot copy a stream.
func Copyable(c jetstream.StreamConfig) error {
	if c.Retention != jetstream.LimitsPolicy {
		return fmt.Errorf("partitions: stream %s has retention %s, from which a server cannot copy safely; set retention to limits", c.Name, c.Retention)
	}
	return nil
}

// Start is where the first generation of a route begins: where its durable without partitions is, or where the configuration says.
func (m Maker) Start(ctx context.Context, w Wanted, from jetstream.Stream) (partition.Start, error) {
	info := from.CachedInfo()
	consumer, err := from.Consumer(ctx, w.Durable)
	switch {
	case err == nil && provision.MarkOf(consumer.CachedInfo().Config.Metadata).Service == m.Service:
		floor := consumer.CachedInfo().AckFloor.Stream
		m.Log.Warn("the route gets partitions, which begin at the ack floor of its durable; what was handled above the ack floor is handled again", "route", w.Route, "durable", w.Durable, "ack_floor", floor)
		return partition.Start{Sequence: floor + 1}, nil
	case err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrNotPullConsumer):
		return partition.Start{}, err
	}
	if start, said := w.Start.at(info.State.LastSeq); said {
		return start, nil
	}
	var n uint64
	for _, subj := range w.Subjects {
		more, _, err := audit.Matching(ctx, m.Conn, m.API, info.Config.Name, subj)
		if err != nil {
			return partition.Start{}, err
		}
		n += more
	}
	if n > 0 {
		return partition.Start{}, fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and the route has no partitions yet: say where they begin (start: all, new, {since: <time>} or {seq: <n>})",
			info.Config.Name, n, strings.Join(w.Subjects, ", "))
	}
	return partition.Start{Sequence: info.State.LastSeq + 1}, nil
}
