package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/audit"
)

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
	m.parked, m.source = upkeep.Gone(parked.CachedInfo().State), upkeep.Gone(source.CachedInfo().State)
	n := min(missing-min(missing, was.most), m.parked-min(m.parked, was.parked))
	edited, _ := r.upkeep.RetryEdited()
	if begins || n == 0 || !edited.After(was.checked) && m.source != was.source {
		return
	}
	r.upkeep.LostParked(ctx, main.durable, n)
}

// stands tells whether nothing came, ended or moved between two looks.
func stands(a, b *audit.Balance) bool {
	return a.Total == b.Total && a.Carried == b.Carried && a.Outstanding == b.Outstanding && a.Parked == b.Parked &&
		a.NotDelivered == b.NotDelivered && a.Uncounted == b.Uncounted && b.Verdict != audit.Moving
}

// auditAgain is how long after an audit of a ledger the next one is. Soon after somebody edited the retry stream, or may have purged it: its
// oldest messages are others now.
func (r *Relay) auditAgain(now time.Time) time.Duration {
	edited, moved := r.upkeep.RetryEdited()
	switch {
	case now.Sub(edited) < auditEvery:
		return 0
	case now.Sub(moved) < auditEvery:
		return auditEvery / 4
	}
	return auditEvery
}
