package upkeep

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/transient"
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

// SetRight makes what is needed later only, so that nobody else makes it first, and sets all of them right. The error says that one
// of them lets others read, forge or remove what relay stores there, and that relay cannot change that.
func (u *Upkeep) SetRight(ctx context.Context) error {
	if _, err := orders.Open(ctx, u.cfg.JS, u.cfg.Stores.Service, u.cfg.Stores.Replicas); err != nil {
		return err
	}
	if _, err := dlq.OpenJobs(ctx, u.cfg.JS, u.cfg.Stores.Service, u.cfg.Stores.Replicas); err != nil {
		return err
	}
	for _, want := range u.cfg.Streams() {
		_, err := ownstream.Check(ctx, u.cfg.JS, want, ownstream.AtStart, u.cfg.Log)
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
	if err := u.cfg.Stores.Dead.BeginBook(ctx, u.cfg.Stores.Letters.Age); err != nil {
		u.cfg.Log.Debug("cannot begin relay's record of the dead letters yet; retrying", "error", err)
	}
	return nil
}

// WatchSettings compares them again and again after the start, in which what the configuration says has won. Now only
// what would lose something is changed: at once when the server says that one was updated, and all of them on a tick.
func (u *Upkeep) WatchSettings(ctx context.Context) {
	updated, stop := u.hearUpdates()
	defer stop()
	tick, often := time.NewTimer(ownEvery), time.NewTimer(ownOften)
	defer tick.Stop()
	defer often.Stop()
	u.Compare(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(u.cfg.Stores.AmongMany(ownEvery))
			u.Compare(ctx)
		case <-often.C:
			often.Reset(u.cfg.Stores.AmongMany(ownOften))
			for _, want := range u.cfg.Streams() {
				if want.Name == u.cfg.Stores.RetryStream() || want.Name == u.cfg.Stores.Dead.Name() {
					u.lookAt(ctx, want)
				}
			}
		case name := <-updated:
			for _, want := range u.cfg.Streams() {
				if want.Name == name {
					u.compare(ctx, want)
				}
			}
			transient.Pause(ctx, updateRest)
		}
	}
}

// UpdatePrefix begins the subjects on which the server says that a stream was updated (nats-server, JSAdvisoryStreamUpdatedPre).
const UpdatePrefix = "$JS.EVENT.ADVISORY.STREAM.UPDATED."

// hearUpdates hears from the server which of them was updated. A user who may not hear that, or an account that has JetStream from
// another one, has the tick alone.
func (u *Upkeep) hearUpdates() (updated <-chan string, stop func()) {
	names := make(chan string, 64)
	var heard []*nats.Subscription
	stop = func() {
		for _, s := range heard {
			_ = s.Unsubscribe()
		}
	}
	u.cfg.Probing.Lock()
	defer u.cfg.Probing.Unlock()
	for _, want := range u.cfg.Streams() {
		sub, err := u.cfg.Conn.Subscribe(UpdatePrefix+want.Name, func(m *nats.Msg) {
			select {
			case names <- strings.TrimPrefix(m.Subject, UpdatePrefix):
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
		if err := u.cfg.Conn.FlushTimeout(settleTimeout); err != nil {
			continue
		}
		if v := permission.Of(u.cfg.Conn.LastError()); v != nil && v.Subscribe && v.Subject == sub.Subject {
			u.cfg.Log.Warn("NATS does not permit relay to subscribe to the advisories of changes of its own streams, so relay polls these streams instead; print the permissions again (relay nats permissions)", "subject", v.Subject, "within", u.cfg.Stores.AmongMany(ownOften))
			_ = sub.Unsubscribe()
			break
		}
	}
	return names, stop
}

// Compare compares all of them now.
func (u *Upkeep) Compare(ctx context.Context) {
	var list []fill
	for _, want := range u.cfg.Streams() {
		if info := u.compare(ctx, want); info != nil {
			list = append(list, u.fillsOf(info, time.Now())...)
		}
		if ctx.Err() != nil {
			return
		}
	}
	u.fills.note(list, time.Now(), u.cfg.Log)
}

// lookAt compares one of them if it is not as it was when it was last compared.
func (u *Upkeep) lookAt(ctx context.Context, want jetstream.StreamConfig) {
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	have, err := u.cfg.Looks.Get(call, want.Name, looks.ShareFor)
	cancel()
	if ctx.Err() != nil || err != nil {
		return // who needs it tells of that
	}
	info := have.CachedInfo()
	was, known := u.compared.Load(want.Name)
	if !known || looks.ContentOf(was.(*jetstream.StreamInfo)) != looks.ContentOf(info) || !reflect.DeepEqual(was.(*jetstream.StreamInfo).Config, info.Config) {
		u.compare(ctx, want)
	}
}

// compare compares one of them; nil: it is not there, or does not answer.
func (u *Upkeep) compare(ctx context.Context, want jetstream.StreamConfig) *jetstream.StreamInfo {
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	stream, changes, err := ownstream.Compare(call, u.cfg.JS, want, ownstream.Running, u.cfg.Log)
	cancel()
	what := "the settings of stream " + want.Name
	var fault *ownstream.Error
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &fault):
		u.cfg.Troubles.Note(what, fault, time.Now())
	case err == nil: // one that is missing, or does not answer, is told of by those that need it
		u.cfg.Troubles.Mended(what, time.Now())
	}
	if stream == nil {
		return nil
	}
	info := stream.CachedInfo()
	u.compared.Store(want.Name, info)
	if want.Name == "KV_"+u.cfg.Stores.AttemptsBucket() {
		u.cfg.Stores.Records.Learn(info)
	}
	u.lossesOf(ctx, info, changes)
	return info
}
