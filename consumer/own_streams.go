package consumer

import (
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/dlq"
)

// stores is what this says of relay's own streams and buckets.
func (c Config) stores() stores.Config {
	own := stores.Config{Service: c.Service, Instance: c.Instance, Replicas: c.Replicas, Letters: stores.Letters{
		Bounds: stores.Bounds{Age: c.DLQ.MaxAge, Bytes: c.DLQ.MaxBytes, Messages: c.DLQ.MaxMsgs}, OnFull: c.DLQ.OnFull,
	}}
	if e := c.Events; e.Store {
		own.Events = &stores.Bounds{Age: e.MaxAge, Bytes: int64(e.MaxBytes), Messages: int64(e.MaxMsgs)}
	}
	if a := c.Archive; a.Outcomes {
		own.Archive = &stores.Bounds{Age: a.MaxAge, Bytes: int64(a.MaxBytes), Messages: int64(a.MaxMsgs)}
	}
	return own
}

// ownStreams are relay's own streams as they have to be now.
func ownStreams(r *Relay) []jetstream.StreamConfig {
	list := r.stores.Streams(deadPrefixes(r.routes.all()))
	if r.membership.Needed() {
		list = append(list, r.stores.Fleet())
	}
	return list
}

// upkeepConfig is how relay's own streams are watched.
func upkeepConfig(r *Relay) upkeep.Config {
	return upkeep.Config{
		Conn: r.nc, JS: r.js, Log: r.log, Looks: r.streams, Troubles: r.troubles, Probing: r.prober,
		Stores: r.stores, Streams: func() []jetstream.StreamConfig { return ownStreams(r) }, SweepRecords: r.running.sweepRecords,
		Parked: upkeep.Room{Bytes: int64(r.cfg.Parked.MaxBytes), Messages: r.cfg.Parked.MaxMsgs, Age: r.cfg.Parked.MaxAge},
		Routes: func() (names []string) {
			for _, rt := range r.routes.all() {
				names = append(names, rt.name())
			}
			slices.Sort(names)
			return slices.Compact(names)
		},
		Stored:        r.routes.stored,
		ReportTrouble: func(what string, err error) { r.events.Trouble("", what, err) },
		ReportFilling: func(u dlq.Usage) { r.events.Filling(u, r.cfg.DLQ.OnFull) },
	}
}
