package engine

import (
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/dlq"
)

// ownStreams are relay's own streams as they have to be now.
func OwnStreams(r *Engine) []jetstream.StreamConfig {
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
		Stores: r.Stores, Streams: func() []jetstream.StreamConfig { return OwnStreams(r) }, SweepRecords: r.Running.SweepRecords,
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
