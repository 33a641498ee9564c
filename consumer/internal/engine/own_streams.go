package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/dlq"
)

// OwnStreams are relay's own streams as they have to be now.
func (r *Engine) OwnStreams() []jetstream.StreamConfig {
	list := r.Stores.Streams(deadPrefixes(r.Routes.All()))
	if r.Membership.Needed() {
		list = append(list, r.Stores.Fleet())
	}
	return list
}

// upkeepConfig is how relay's own streams are watched.
func upkeepConfig(r *Engine) upkeep.Config {
	return upkeep.Config{
		Conn: r.Conn, JS: r.JS, Log: r.Log, Looks: r.streams, Troubles: r.Troubles, Probing: r.prober,
		Stores: r.Stores, Streams: r.OwnStreams, SweepRecords: r.Running.SweepRecords,
		Parked: r.Config.Parked,
		Routes: func() (names []string) {
			for _, rt := range r.Routes.All() {
				names = append(names, rt.Name())
			}
			slices.Sort(names)
			return slices.Compact(names)
		},
		Stored:        r.Routes.stored,
		ReportTrouble: func(what string, err error) { r.Reports.Trouble("", what, err) },
		ReportFilling: func(u dlq.Usage) { r.Reports.Filling(u, r.Config.Letters.OnFull) },
	}
}

// newArchive is nil when nothing is kept.
func newArchive(r *Engine) *archive.Writer {
	if r.Config.Archive == nil {
		return nil
	}
	return archive.New(archive.Config{
		Service: r.Config.Service, Instance: r.Config.Instance, Logger: r.Log, MaxPayload: r.Conn.MaxPayload,
		Publish: func(ctx context.Context, m *nats.Msg) error {
			_, err := r.JS.PublishMsg(ctx, m, jetstream.WithExpectStream(archive.StreamName(r.Config.Service)))
			if errors.Is(err, jetstream.ErrNoStreamResponse) {
				return errors.Join(err, r.Stores.EnsureArchive(ctx)) // for the next try: somebody deleted the stream
			}
			return err
		},
	})
}
