package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/ownstream"
)

// ownEvery is how often an instance compares relay's own streams with what they have to be. Others may edit them: a max_age on
// the retry stream, for example, would remove parked messages without a word.
const ownEvery = 30 * time.Second

// ownConfigs are what relay's own streams have to be.
func (r *Relay) ownConfigs() []jetstream.StreamConfig {
	service := r.cfg.Service
	list := append([]jetstream.StreamConfig{ack.RetryConfig(service, r.retryStreamName(), r.cfg.Replicas)}, r.deadConfig().Streams()...)
	if r.cfg.Events.Store {
		list = append(list, r.eventsConfig())
	}
	if r.grid.needed() {
		list = append(list, fleet.Stream(service, r.cfg.Replicas))
	}
	return append(list,
		ownstream.Bucket(r.attemptsName(), r.cfg.Replicas, 0), ownstream.Bucket(audit.Bucket(service), r.cfg.Replicas, 0),
		ownstream.Bucket(strings.ToUpper(service)+"_STATE", r.cfg.Replicas, 0),
		ownstream.Bucket(r.instancesName(), r.cfg.Replicas, suspects.Lapse), dlq.JobsStream(service, r.cfg.Replicas))
}

// ownStreams makes what is needed later only, so that nobody else makes it first, and sets all of them right. The error says that one
// of them lets others read, forge or remove what relay stores there, and that relay cannot change that.
func (r *Relay) ownStreams(ctx context.Context) error {
	if _, err := OpenOrders(ctx, r.js, r.cfg.Service, r.cfg.Replicas); err != nil {
		return err
	}
	if _, err := dlq.OpenJobs(ctx, r.js, r.cfg.Service, r.cfg.Replicas); err != nil {
		return err
	}
	for _, want := range r.ownConfigs() {
		_, err := ownstream.Check(ctx, r.js, want, false, r.log)
		var fault *ownstream.Error
		switch {
		case errors.As(err, &fault):
			if fault.Danger {
				return fault
			}
		case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("stream %s: %w", want.Name, err)
		}
	}
	return nil
}

// watchOwnStreams compares them at the start, when what the configuration says wins, and then again and again, when only
// what would lose something is changed.
func (r *Relay) watchOwnStreams(ctx context.Context) {
	tick := time.NewTicker(ownEvery)
	defer tick.Stop()
	for running := false; ; running = true {
		r.compareOwnStreams(ctx, running)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Relay) compareOwnStreams(ctx context.Context, running bool) {
	var list []fill
	for _, want := range r.ownConfigs() {
		call, cancel := context.WithTimeout(ctx, settleTimeout)
		stream, err := ownstream.Check(call, r.js, want, running, r.log)
		cancel()
		what := "the settings of stream " + want.Name
		var fault *ownstream.Error
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &fault):
			r.troubles.note(what, fault, time.Now())
		case err == nil: // one that is missing, or does not answer, is told of by those that need it
			r.troubles.mended(what, time.Now())
		}
		if stream == nil {
			continue
		}
		if want.Name == "KV_"+r.attemptsName() {
			r.records.Learn(stream.CachedInfo())
		}
		list = append(list, r.fillsOf(stream.CachedInfo(), time.Now())...)
	}
	r.fills.note(list, time.Now(), r.log)
}
