package upkeep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/ownstream"
)

// Somebody edits the retry stream or the dead letters, or purges them, and messages are gone. Relay says so at once, and how many as far as
// that is known: of dead letters by their book, of parked messages by the ledgers of their durables.

// lossSaid is for how long readiness says what somebody did to relay's own streams, after the last of it.
const lossSaid = ownEvery

// loss is what somebody did to one stream.
type loss struct {
	since, until time.Time
	what         []string // settings
	lost         string   // how many, in words
}

// losses are those of all streams.
type losses struct {
	mu    sync.Mutex
	list  map[string]*loss
	count map[string]uint64 // what was lost for certain, by stream

	saw    *dlq.Loss // of the dead letters, last
	went   uint64    // of the retry stream, when it was last seen with the right settings
	first  uint64    // number of its oldest message then
	seen   bool
	edited time.Time // the retry stream, last
	moved  time.Time // when its oldest message was last another one
}

func (l *losses) note(stream string, changes []ownstream.Change, lost string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		l.list = make(map[string]*loss)
	}
	entry := l.list[stream]
	if entry == nil || now.After(entry.until) {
		entry = &loss{since: now}
		l.list[stream] = entry
	}
	for _, c := range changes {
		if text := c.String(); !slices.Contains(entry.what, text) {
			entry.what = append(entry.what, text)
		}
	}
	entry.lost, entry.until = lost, now.Add(lossSaid)
}

// err is what readiness says.
func (l *losses) err(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, stream := range slices.Sorted(maps.Keys(l.list)) {
		entry := l.list[stream]
		if now.After(entry.until) {
			delete(l.list, stream)
			continue
		}
		text := "messages were removed from outside"
		if len(entry.what) > 0 {
			text = "changed from outside: " + strings.Join(entry.what, ", ")
		}
		errs = append(errs, fmt.Errorf("stream %s: %s (since %s); %s; relay does not undo this: find out who did it; this instance becomes ready again at %s unless it happens again",
			stream, text, entry.since.UTC().Format(time.RFC3339), entry.lost, entry.until.UTC().Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

var lostDesc = prometheus.NewDesc("relay_own_stream_lost_messages_total",
	"Messages that somebody other than relay removed from one of relay's own streams, as far as that is certain. Of the dead letters: since their record began.", []string{"stream"}, nil)

func (l *losses) collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for stream, n := range l.count {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(n), stream)
	}
}

// lossesOf looks what is lost of a stream that was just compared; changes are what relay set back.
func (u *Upkeep) lossesOf(ctx context.Context, info *jetstream.StreamInfo, changes []ownstream.Change) {
	changes = slices.DeleteFunc(slices.Clone(changes), func(c ownstream.Change) bool { return !c.Loses })
	name, now := info.Config.Name, time.Now()
	switch name {
	case u.cfg.Stores.Dead.Name():
		u.deadLost(ctx, info.Config.MaxAge, changes)
	case u.cfg.Stores.RetryStream():
		u.parkedEdited(ctx, info.State, changes)
	default:
		if len(changes) > 0 {
			u.tellLoss(ctx, dlq.Edit{Stream: name}, changes, "how much was lost is not known", now)
		}
	}
}

// deadLost looks at the book of the dead letters.
func (u *Upkeep) deadLost(ctx context.Context, age time.Duration, changes []ownstream.Change) {
	found, untold, err := u.cfg.Stores.Dead.Look(ctx, age)
	if err != nil {
		u.cfg.Log.Debug("cannot compare the dead letters with relay's record of them; retrying", "error", err)
		if len(changes) > 0 {
			u.tellLoss(ctx, dlq.Edit{Stream: u.cfg.Stores.Dead.Name()}, changes, "how many were lost is not known yet", time.Now())
		}
		return
	}
	l := &u.losses
	l.mu.Lock()
	was := l.saw
	l.saw = &found
	if l.count == nil {
		l.count = make(map[string]uint64)
	}
	l.count[u.cfg.Stores.Dead.Name()] = found.AtLeast
	l.mu.Unlock()
	if was == nil {
		was = &dlq.Loss{AtLeast: found.AtLeast - min(found.AtLeast, untold), AtMost: found.AtMost}
	}
	more := dlq.Loss{AtLeast: found.AtLeast - min(found.AtLeast, was.AtLeast)}
	more.AtMost = max(more.AtLeast, found.AtMost-min(found.AtMost, was.AtLeast))
	switch {
	case more.AtLeast > 0 && (untold > 0 || len(changes) > 0):
		u.tellLoss(ctx, dlq.Edit{Stream: u.cfg.Stores.Dead.Name(), AtLeast: more.AtLeast, AtMost: more.AtMost}, changes, lostText(more, "dead letters"), time.Now())
	case more.AtLeast > 0: // another instance has told
		l.note(u.cfg.Stores.Dead.Name(), changes, lostText(more, "dead letters"), time.Now())
	case len(changes) > 0:
		u.tellLoss(ctx, dlq.Edit{Stream: u.cfg.Stores.Dead.Name(), AtMost: more.AtMost}, changes, lostText(more, "dead letters"), time.Now())
	}
}

func lostText(l dlq.Loss, what string) string {
	switch {
	case l.AtMost == 0:
		return "no " + what + " were lost"
	case l.AtLeast == 0:
		return fmt.Sprintf("at most %d %s were lost", l.AtMost, what)
	}
	return fmt.Sprintf("%v %s were lost", l, what)
}

// parkedEdited notes what went from the retry stream. That is also what came due and was handled, so it is a bound; how many were lost is
// in the ledgers, once they are quiet.
func (u *Upkeep) parkedEdited(ctx context.Context, st jetstream.StreamState, changes []ownstream.Change) {
	l, now := &u.losses, time.Now()
	went := looks.Gone(st)
	l.mu.Lock()
	most, known := went-min(went, l.went), l.seen
	if l.seen && st.FirstSeq != l.first {
		l.moved = now
	}
	l.went, l.first, l.seen = went, st.FirstSeq, true
	if len(changes) > 0 {
		l.edited = now
	}
	l.mu.Unlock()
	if len(changes) == 0 {
		return
	}
	text := "how many parked messages were lost is not known yet"
	switch {
	case known && most == 0:
		text = "no parked messages were lost"
	case known:
		text = fmt.Sprintf("at most %d parked messages were lost, including messages that were handled meanwhile; relay audit shows how many once the route is quiet", most)
	}
	u.tellLoss(ctx, dlq.Edit{Stream: u.cfg.Stores.RetryStream(), AtMost: most}, changes, text, now)
}

// tellLoss says it everywhere.
func (u *Upkeep) tellLoss(ctx context.Context, edit dlq.Edit, changes []ownstream.Change, lost string, now time.Time) {
	u.losses.note(edit.Stream, changes, lost, now)
	edit.At = now.UTC()
	var what []string
	for _, c := range changes {
		what = append(what, c.String())
	}
	edit.What = strings.Join(what, ", ")
	if edit.What == "" {
		edit.What = "messages were removed from outside"
	}
	u.cfg.Log.Error("one of relay's own streams was changed from outside", "stream", edit.Stream, "what", edit.What, "lost", lost, "next", "relay does not undo this; find out who did it (relay audit)")
	u.cfg.ReportTrouble("stream "+edit.Stream, errors.New(edit.What+"; "+lost))
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	jobs, err := dlq.AttachJobs(call, u.cfg.JS, u.cfg.Stores.Service)
	if err == nil {
		err = jobs.NoteEdit(call, edit)
	}
	if err != nil {
		u.cfg.Log.Warn("cannot record for relay audit that one of relay's own streams was changed from outside", "stream", edit.Stream, "error", err)
	}
}

// LostParked says that so many parked messages of a durable are lost for certain.
func (u *Upkeep) LostParked(ctx context.Context, durable string, n uint64) {
	l := &u.losses
	l.mu.Lock()
	if l.count == nil {
		l.count = make(map[string]uint64)
	}
	l.count[u.cfg.Stores.RetryStream()] += n
	l.mu.Unlock()
	u.tellLoss(ctx, dlq.Edit{Stream: u.cfg.Stores.RetryStream(), AtLeast: n, AtMost: n}, nil,
		fmt.Sprintf("%d messages of durable %s that were parked are lost, as its ledger says", n, durable), time.Now())
}

// RetryEdited is when somebody last edited the retry stream, and RetryMoved when its oldest message was last another one, as after a purge.
func (u *Upkeep) RetryEdited() (edited, moved time.Time) {
	l := &u.losses
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.edited, l.moved
}

// Err is what readiness says of what others did to relay's own streams lately.
func (u *Upkeep) Err(now time.Time) error { return u.losses.err(now) }
