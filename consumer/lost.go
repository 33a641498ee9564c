package consumer

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

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
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
		text := "somebody took messages out without relay"
		if len(entry.what) > 0 {
			text = "changed from outside: " + strings.Join(entry.what, ", ")
		}
		errs = append(errs, fmt.Errorf("stream %s: %s (since %s); %s; relay does not change it back: find out who did it; this instance is ready again at %s unless it happens again",
			stream, text, entry.since.UTC().Format(time.RFC3339), entry.lost, entry.until.UTC().Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

var lostDesc = prometheus.NewDesc("relay_own_stream_lost_messages_total",
	"Messages that went from one of relay's own streams without relay, as far as that is certain; of the dead letters since their book began.", []string{"stream"}, nil)

func (l *losses) collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for stream, n := range l.count {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(n), stream)
	}
}

// lossesOf looks what is lost of a stream that was just compared; changes are what relay set back.
func (r *Relay) lossesOf(ctx context.Context, info *jetstream.StreamInfo, changes []ownstream.Change, running bool) {
	if !running {
		changes = nil // the configuration may have changed
	}
	changes = slices.DeleteFunc(slices.Clone(changes), func(c ownstream.Change) bool { return !c.Loses })
	name, now := info.Config.Name, time.Now()
	switch name {
	case r.dead.Name():
		r.deadLost(ctx, info.Config.MaxAge, changes)
	case r.retryStreamName():
		r.parkedEdited(ctx, info.State, changes)
	default:
		if len(changes) > 0 {
			r.tellLoss(ctx, dlq.Edit{Stream: name}, changes, "how much was lost is not known", now)
		}
	}
}

// deadLost looks at the book of the dead letters.
func (r *Relay) deadLost(ctx context.Context, age time.Duration, changes []ownstream.Change) {
	found, untold, err := r.dead.Look(ctx, age)
	if err != nil {
		r.log.Debug("the book of the dead letters could not be compared; tried again soon", "error", err)
		if len(changes) > 0 {
			r.tellLoss(ctx, dlq.Edit{Stream: r.dead.Name()}, changes, "how many were lost is not known yet", time.Now())
		}
		return
	}
	l := &r.losses
	l.mu.Lock()
	was := l.saw
	l.saw = &found
	if l.count == nil {
		l.count = make(map[string]uint64)
	}
	l.count[r.dead.Name()] = found.AtLeast
	l.mu.Unlock()
	if was == nil {
		was = &dlq.Loss{AtLeast: found.AtLeast - min(found.AtLeast, untold), AtMost: found.AtMost}
	}
	more := dlq.Loss{AtLeast: found.AtLeast - min(found.AtLeast, was.AtLeast)}
	more.AtMost = max(more.AtLeast, found.AtMost-min(found.AtMost, was.AtLeast))
	switch {
	case more.AtLeast > 0 && (untold > 0 || len(changes) > 0):
		r.tellLoss(ctx, dlq.Edit{Stream: r.dead.Name(), AtLeast: more.AtLeast, AtMost: more.AtMost}, changes, lostText(more, "dead letters"), time.Now())
	case more.AtLeast > 0: // another instance has told
		l.note(r.dead.Name(), changes, lostText(more, "dead letters"), time.Now())
	case len(changes) > 0:
		r.tellLoss(ctx, dlq.Edit{Stream: r.dead.Name(), AtMost: more.AtMost}, changes, lostText(more, "dead letters"), time.Now())
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
func (r *Relay) parkedEdited(ctx context.Context, st jetstream.StreamState, changes []ownstream.Change) {
	l, now := &r.losses, time.Now()
	went := gone(st)
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
		text = fmt.Sprintf("at most %d parked messages were lost, those among them that were handled meanwhile; how many the ledgers say once messages are quiet (relay audit)", most)
	}
	r.tellLoss(ctx, dlq.Edit{Stream: r.retryStreamName(), AtMost: most}, changes, text, now)
}

// gone is how many messages there were in a stream and are not there any more.
func gone(st jetstream.StreamState) uint64 { return st.LastSeq - min(st.LastSeq, st.Msgs) }

// tellLoss says it everywhere.
func (r *Relay) tellLoss(ctx context.Context, edit dlq.Edit, changes []ownstream.Change, lost string, now time.Time) {
	r.losses.note(edit.Stream, changes, lost, now)
	edit.At = now.UTC()
	var what []string
	for _, c := range changes {
		what = append(what, c.String())
	}
	edit.What = strings.Join(what, ", ")
	if edit.What == "" {
		edit.What = "messages were taken out without relay"
	}
	r.log.Error("one of relay's own streams was changed from outside", "stream", edit.Stream, "what", edit.What, "lost", lost, "next", "relay does not change it back; find out who did it (relay audit)")
	r.reportTrouble("", "stream "+edit.Stream, errors.New(edit.What+"; "+lost))
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	jobs, err := dlq.AttachJobs(call, r.js, r.cfg.Service)
	if err == nil {
		err = jobs.NoteEdit(call, edit)
	}
	if err != nil {
		r.log.Warn("cannot note for relay audit that one of relay's own streams was changed from outside", "stream", edit.Stream, "error", err)
	}
}

// ledgerLoss is what a unit knows of parked messages that are lost.
type ledgerLoss struct {
	last *audit.Balance
	at   time.Time // when it was seen first
	// What was unexplained, and what had gone from the retry stream and from the unit's own, when that was last said or looked at.
	most           uint64
	parked, source uint64
	checked        time.Time
}

// missing compares two looks at a ledger. Only when nothing at all moved for longer than instances take to write is what they miss
// missing for certain; and only when it went from the retry stream, and not from the durable's own, was it parked.
func (t *tally) missing(ctx context.Context, b audit.Balance) {
	r, main, m, now := t.u.relay, t.main(), &t.lost, time.Now()
	still := m.last != nil && stands(m.last, &b)
	if !still {
		m.last, m.at = &b, now
	}
	begins := m.checked.IsZero() // what is missing since before is for relay audit to say
	if main == nil || !begins && (!still || now.Sub(m.at) < tallyEvery+2*time.Second) {
		return
	}
	parked, err := r.js.Stream(ctx, r.retryStreamName())
	if err != nil {
		return
	}
	source, err := r.js.Stream(ctx, main.stream)
	if err != nil {
		return
	}
	missing := uint64(0)
	if b.Difference > 0 {
		missing = b.Unexplained()
	}
	was := *m
	m.most, m.checked = max(m.most, missing), now
	m.parked, m.source = gone(parked.CachedInfo().State), gone(source.CachedInfo().State)
	n := min(missing-min(missing, was.most), m.parked-min(m.parked, was.parked))
	l := &r.losses
	l.mu.Lock()
	edited := l.edited.After(was.checked)
	if begins || n == 0 || !edited && m.source != was.source {
		l.mu.Unlock()
		return
	}
	if l.count == nil {
		l.count = make(map[string]uint64)
	}
	l.count[r.retryStreamName()] += n
	l.mu.Unlock()
	r.tellLoss(ctx, dlq.Edit{Stream: r.retryStreamName(), AtLeast: n, AtMost: n}, nil,
		fmt.Sprintf("%d messages of durable %s that were parked are lost, as its ledger says", n, main.durable), now)
}

// stands tells whether nothing came, ended or moved between two looks.
func stands(a, b *audit.Balance) bool {
	return a.Total == b.Total && a.Carried == b.Carried && a.Outstanding == b.Outstanding && a.Parked == b.Parked &&
		a.NotDelivered == b.NotDelivered && a.Uncounted == b.Uncounted && b.Verdict != audit.Moving
}

// auditAgain is how long after an audit of a ledger the next one is. Soon after somebody edited the retry stream, or may have purged it: its
// oldest messages are others now.
func (l *losses) auditAgain(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case now.Sub(l.edited) < auditEvery:
		return 0
	case now.Sub(l.moved) < auditEvery:
		return auditEvery / 4
	}
	return auditEvery
}
