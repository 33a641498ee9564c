package consumer

import (
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/retry"
)

// ownConfigs are what relay's own streams have to be.
func (r *Relay) ownConfigs() []jetstream.StreamConfig {
	service := r.cfg.Service
	list := append([]jetstream.StreamConfig{retry.StreamConfig(service, r.retryStreamName(), r.cfg.Replicas)}, r.deadConfig().Streams()...)
	if r.cfg.Events.Store {
		list = append(list, r.eventsConfig())
	}
	if r.archive != nil {
		list = append(list, r.archiveConfig())
	}
	if r.membership.Needed() {
		list = append(list, fleet.Stream(service, r.cfg.Replicas))
	}
	return append(list,
		ownstream.Bucket(r.attemptsName(), r.cfg.Replicas, 0), ownstream.Bucket(audit.Bucket(service), r.cfg.Replicas, 0),
		ownstream.Bucket(strings.ToUpper(service)+"_STATE", r.cfg.Replicas, 0),
		ownstream.Bucket(r.instancesName(), r.cfg.Replicas, suspects.Lapse), dlq.JobsStream(service, r.cfg.Replicas))
}

// upkeepConfig is how relay's own streams are watched.
func (r *Relay) upkeepConfig() upkeep.Config {
	dead := r.deadConfig().Streams()
	return upkeep.Config{
		Conn: r.nc, JS: r.js, Log: r.log, Looks: r.streams, Troubles: r.troubles, Probing: r.prober,
		Service: r.cfg.Service, Replicas: r.cfg.Replicas, Streams: r.ownConfigs, RetryStream: r.retryStreamName(), AttemptsBucket: r.attemptsName(),
		DeadStreams: [2]string{dead[0].Name, dead[1].Name}, DeadAge: r.cfg.DLQ.MaxAge, OnFull: r.cfg.DLQ.OnFull,
		Parked: upkeep.Room{Bytes: int64(r.cfg.Parked.MaxBytes), Messages: r.cfg.Parked.MaxMsgs, Age: r.cfg.Parked.MaxAge},
		Buckets: func() []string {
			if r.lives.Load() == nil {
				return nil
			}
			return []string{r.instancesName()}
		},
		Routes: func() (names []string) {
			for _, rt := range r.all() {
				names = append(names, rt.name())
			}
			slices.Sort(names)
			return slices.Compact(names)
		},
		AmongMany:     r.amongMany,
		Stirred:       func() upkeep.Stir { return upkeep.Stir{Stored: r.stored(), Failed: r.trouble.Load()} },
		ReportTrouble: func(what string, err error) { r.reportTrouble("", what, err) },
		ReportFilling: r.reportFilling,
	}
}
