package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/retry"
)

// ownEvery is how often an instance compares relay's own streams with what they have to be. Others may edit them: a max_age on
// the retry stream, for example, would remove parked messages without a word.
const ownEvery = 30 * time.Second

const (
	// ownOften is how often it compares those that hold messages: a purge, of which the server tells nobody, shows in their counts.
	ownOften = 5 * time.Second
	// updateRest is the pause after a stream was compared because the server, or who says so in its name, told of an update.
	updateRest = 100 * time.Millisecond
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

// ownStreams makes what is needed later only, so that nobody else makes it first, and sets all of them right. The error says that one
// of them lets others read, forge or remove what relay stores there, and that relay cannot change that.
func (r *Relay) ownStreams(ctx context.Context) error {
	if _, err := orders.Open(ctx, r.js, r.cfg.Service, r.cfg.Replicas); err != nil {
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
	if err := r.dead.BeginBook(ctx, r.cfg.DLQ.MaxAge); err != nil {
		r.log.Debug("the book of the dead letters is not begun yet; tried again soon", "error", err)
	}
	return nil
}

// watchOwnStreams compares them again and again after the start, in which what the configuration says has won. Now only
// what would lose something is changed: at once when the server says that one was updated, and all of them on a tick.
func (r *Relay) watchOwnStreams(ctx context.Context) {
	updated, stop := r.hearUpdates()
	defer stop()
	tick, often := time.NewTimer(ownEvery), time.NewTimer(ownOften)
	defer tick.Stop()
	defer often.Stop()
	r.compareOwnStreams(ctx, true)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(r.amongMany(ownEvery))
			r.compareOwnStreams(ctx, true)
		case <-often.C:
			often.Reset(r.amongMany(ownOften))
			for _, want := range r.ownConfigs() {
				if want.Name == r.retryStreamName() || want.Name == r.dead.Name() {
					r.lookAtOwn(ctx, want)
				}
			}
		case name := <-updated:
			for _, want := range r.ownConfigs() {
				if want.Name == name {
					r.compareOwn(ctx, want, true)
				}
			}
			pause(ctx, updateRest)
		}
	}
}

// updatePrefix begins the subjects on which the server says that a stream was updated (nats-server, JSAdvisoryStreamUpdatedPre).
const updatePrefix = "$JS.EVENT.ADVISORY.STREAM.UPDATED."

// hearUpdates hears from the server which of them was updated. A user who may not hear that, or an account that has JetStream from
// another one, has the tick alone.
func (r *Relay) hearUpdates() (updated <-chan string, stop func()) {
	names := make(chan string, 64)
	var heard []*nats.Subscription
	stop = func() {
		for _, s := range heard {
			_ = s.Unsubscribe()
		}
	}
	r.probing.Lock()
	defer r.probing.Unlock()
	for _, want := range r.ownConfigs() {
		sub, err := r.nc.Subscribe(updatePrefix+want.Name, func(m *nats.Msg) {
			select {
			case names <- strings.TrimPrefix(m.Subject, updatePrefix):
			default: // the tick finds it
			}
		})
		if err != nil {
			continue
		}
		heard = append(heard, sub)
		if len(heard) > 1 {
			continue
		}
		// One that is refused stands for all: the log is to have one line of it, and a connection that comes back none.
		if err := r.nc.FlushTimeout(settleTimeout); err != nil {
			continue
		}
		if v := permission.Of(r.nc.LastError()); v != nil && v.Subscribe && v.Subject == sub.Subject {
			r.log.Warn("NATS does not permit relay to subscribe to the advisories of changes of its own streams, so relay looks at them from time to time instead; print the permissions again (relay nats permissions)", "subject", v.Subject, "within", r.amongMany(ownOften))
			_ = sub.Unsubscribe()
			break
		}
	}
	return names, stop
}

func (r *Relay) compareOwnStreams(ctx context.Context, running bool) { //nolint:unparam // handed on to compareOwn
	var list []fill
	for _, want := range r.ownConfigs() {
		if info := r.compareOwn(ctx, want, running); info != nil {
			list = append(list, r.fillsOf(info, time.Now())...)
		}
		if ctx.Err() != nil {
			return
		}
	}
	r.fills.note(list, time.Now(), r.log)
}

// lookAtOwn compares one of them if it is not as it was when it was last compared.
func (r *Relay) lookAtOwn(ctx context.Context, want jetstream.StreamConfig) {
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	have, err := r.streams.Get(call, want.Name, looks.ShareFor)
	cancel()
	if ctx.Err() != nil || err != nil {
		return // who needs it tells of that
	}
	info := have.CachedInfo()
	was, known := r.compared.Load(want.Name)
	if !known || looks.ContentOf(was.(*jetstream.StreamInfo)) != looks.ContentOf(info) || !reflect.DeepEqual(was.(*jetstream.StreamInfo).Config, info.Config) {
		r.compareOwn(ctx, want, true)
	}
}

// compareOwn compares one of them; nil: it is not there, or does not answer.
func (r *Relay) compareOwn(ctx context.Context, want jetstream.StreamConfig, running bool) *jetstream.StreamInfo {
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	stream, changes, err := ownstream.Compare(call, r.js, want, running, r.log)
	cancel()
	what := "the settings of stream " + want.Name
	var fault *ownstream.Error
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &fault):
		r.troubles.Note(what, fault, time.Now())
	case err == nil: // one that is missing, or does not answer, is told of by those that need it
		r.troubles.Mended(what, time.Now())
	}
	if stream == nil {
		return nil
	}
	info := stream.CachedInfo()
	r.compared.Store(want.Name, info)
	if want.Name == "KV_"+r.attemptsName() {
		r.records.Learn(info)
	}
	r.lossesOf(ctx, info, changes, running)
	return info
}
