package tally

import (
	"context"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
)

// audit compares the ledger with the server, for the metrics. The list has all tallies of the instance.
func (t *Tally) audit(ctx context.Context, list []*Tally) {
	main := t.main()
	if main == nil {
		return
	}
	of := audit.AllRoutes
	if slices.ContainsFunc(list, func(o *Tally) bool { return o != t && o.cfg.Stream == t.cfg.Stream }) {
		of = audit.OwnRoutes
	}
	cfg := t.keeper.cfg
	now, known := t.contents(ctx)
	if known && slices.Equal(now, t.quiet) && t.keeper.auditAgain(time.Now()) == auditEvery {
		return // the same would come out
	}
	t.quiet = nil
	a := audit.Auditor{JS: cfg.JS, API: cfg.API, Service: cfg.Service, Retry: cfg.Retry, Book: t.keeper.book,
		Operated: func(_ context.Context, stream string, since time.Time) (map[string]audit.Counts, error) {
			if list, known := cfg.Upkeep.Operated(); known {
				return dlq.OperatedSince(list, stream, since), nil
			}
			return nil, nil
		},
	}
	if b, err := a.Audit(ctx, t.cfg.Stream, t.cfg.Durable, of, 0); err == nil {
		t.balance.Store(&b)
		if known && b.Verdict == audit.Balanced && b.Uncounted == 0 && b.Outstanding == 0 && b.NotDelivered == 0 && b.Parked == 0 {
			t.quiet = now
		}
		t.missing(ctx, b)
	}
}

// contents are what the streams hold that an audit looks at: while they are the same and nothing is open, nothing comes or ends.
func (t *Tally) contents(ctx context.Context) (list []looks.Content, known bool) {
	cfg := t.keeper.cfg
	for _, name := range []string{t.cfg.Stream, cfg.Retry, "KV_" + audit.Bucket(cfg.Service)} {
		stream, err := cfg.Looks.Get(ctx, name, contentAge)
		if err != nil {
			return nil, false
		}
		list = append(list, looks.ContentOf(stream.CachedInfo()))
	}
	return list, true
}

// loss is what a tally knows of parked messages that are lost.
type loss struct {
	last *audit.Balance
	at   time.Time // when it was seen first
	// What was unexplained, and what had gone from the retry stream and from the durable's own, when that was last said or looked at.
	most           uint64
	parked, source uint64
	checked        time.Time
}

// missing compares two looks at a ledger. Only when nothing at all moved for longer than instances take to write is what they miss
// missing for certain; and only when it went from the retry stream, and not from the durable's own, was it parked.
func (t *Tally) missing(ctx context.Context, b audit.Balance) {
	cfg, m, now := t.keeper.cfg, &t.lost, time.Now()
	still := m.last != nil && stands(m.last, &b)
	if !still {
		m.last, m.at = &b, now
	}
	begins := m.checked.IsZero() // what is missing since before is for relay audit to say
	if t.main() == nil || !begins && (!still || now.Sub(m.at) < every+2*time.Second) {
		return
	}
	parked, err := cfg.JS.Stream(ctx, cfg.Retry)
	if err != nil {
		return
	}
	source, err := cfg.JS.Stream(ctx, t.cfg.Stream)
	if err != nil {
		return
	}
	missing := uint64(0)
	if b.Difference > 0 {
		missing = b.Unexplained()
	}
	was := *m
	m.most, m.checked = max(m.most, missing), now
	m.parked, m.source = looks.Gone(parked.CachedInfo().State), looks.Gone(source.CachedInfo().State)
	n := min(missing-min(missing, was.most), m.parked-min(m.parked, was.parked))
	edited, _ := cfg.Upkeep.RetryEdited()
	if begins || n == 0 || !edited.After(was.checked) && m.source != was.source {
		return
	}
	cfg.Upkeep.LostParked(ctx, t.cfg.Durable, n)
}

// stands tells whether nothing came, ended or moved between two looks.
func stands(a, b *audit.Balance) bool {
	return a.Total == b.Total && a.Carried == b.Carried && a.Outstanding == b.Outstanding && a.Parked == b.Parked &&
		a.NotDelivered == b.NotDelivered && a.Uncounted == b.Uncounted && b.Verdict != audit.Moving
}
