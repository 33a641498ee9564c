package upkeep

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// usageEvery is how often an instance looks at how full the dead letters are, and the retry stream.
	usageEvery = 15 * time.Second
	// nearlyFull is the share of a bound of one of relay's own streams from which it warns, and repeatWarning how often it says so again.
	nearlyFull    = 0.8
	repeatWarning = time.Hour
	// silentFor is how long the server may not answer before that is said.
	silentFor = 5 * time.Second
	// lookAgain is the longest pause before the next look when something is away.
	lookAgain = 2 * time.Second
)

// use is how full the dead letters are, and how much is parked. That it is there is a matter of readiness, how full it is
// is not: a relay that is taken out of service because its dead letters fill up would help nobody.
type use struct {
	usage  atomic.Pointer[dlq.Usage]
	parked atomic.Int64 // messages in the retry stream
	dead   deadCount
	warned time.Time
	full   bool
}

// WatchUse looks again and again how full the dead letters are, how much is parked, and whether what holds them is there, until ctx is done.
func (u *Upkeep) WatchUse(ctx context.Context) {
	own := presence{u: u, failing: make(map[string]time.Time)}
	for {
		before := u.stir()
		use, err := u.cfg.Stores.Dead.Usage(ctx)
		own.asked(ctx, "the dead letters", err)
		if err == nil {
			if u.use.note(use, time.Now(), u.cfg.Stores.Letters.OnFull, u.cfg.Log) {
				u.cfg.ReportFilling(use)
			}
			u.countDead(ctx, use, time.Now())
		}
		n, err := u.cfg.Stores.Retries.Messages(ctx)
		own.asked(ctx, "stream "+u.cfg.Stores.RetryStream(), err)
		if err == nil {
			u.use.parked.Store(n)
		}
		if u.cfg.Stores.Lives.Load() != nil {
			name := u.cfg.Stores.InstancesBucket()
			_, err := u.cfg.JS.Stream(ctx, "KV_"+name)
			own.asked(ctx, "bucket "+name, err)
		}
		own.rest(ctx, before)
		if ctx.Err() != nil {
			return
		}
	}
}

// Usage is how full the dead letters were when they were last looked at; nil: they were not yet.
func (u *Upkeep) Usage() *dlq.Usage { return u.use.usage.Load() }

// Parked is how many messages were in the retry stream when it was last looked at.
func (u *Upkeep) Parked() int64 { return u.use.parked.Load() }

// Dead is how many dead letters of a route are stored; known is false before the first count.
func (u *Upkeep) Dead(route string) (n int, known bool) { return u.use.dead.stored(route) }

// presence notes what of relay's own is missing, or has not answered for a while.
type presence struct {
	u       *Upkeep
	failing map[string]time.Time // since when
}

func (p *presence) asked(ctx context.Context, what string, err error) {
	now := time.Now()
	if err == nil {
		delete(p.failing, what)
		p.u.cfg.Troubles.Mended(what, now)
		return
	}
	if ctx.Err() != nil {
		return
	}
	since, known := p.failing[what]
	if !known {
		since = now
		p.failing[what] = now
	}
	if now.Sub(since) >= silentFor || !transient.Is(err) {
		p.u.cfg.Troubles.Note(what, err, now)
	}
}

// stir changes when something was stored, or could not be.
type stir struct {
	stored uint64
	failed int64
}

func (u *Upkeep) stir() stir { return stir{u.cfg.Stored(), u.stuck.failed.Load()} }

// rest waits for the next look, which comes soon while something is away, or when something was stored, or could not be, since the last one began.
func (p *presence) rest(ctx context.Context, before stir) {
	for began := time.Now(); ; {
		transient.Pause(ctx, beat.Until(lookAgain))
		if ctx.Err() != nil || len(p.failing) > 0 || p.u.stir() != before || time.Since(began) >= p.u.cfg.Stores.AmongMany(usageEvery) {
			return
		}
	}
}

// whenDeadAreFull is what happens then, and what to do.
func whenDeadAreFull(onFull string) string {
	if onFull == dlq.OnFullDropOldest {
		return "the oldest will be dropped: replay some"
	}
	return "new ones will be refused, and their messages stay in their streams: replay or discard some"
}

// note keeps the usage for the metrics, and warns when it is due: then it returns true.
func (t *use) note(of dlq.Usage, now time.Time, onFull string, log *slog.Logger) (warned bool) {
	t.usage.Store(&of)
	full := of.Full() >= nearlyFull
	if full && (!t.full || now.Sub(t.warned) >= repeatWarning) {
		next := whenDeadAreFull(onFull) + ", or raise " + of.Nearest()
		log.Warn("dead letters are nearly full", "percent", int(100*of.Full()), "entries", of.Entries, "bytes", of.Bytes,
			"bodies", of.Bodies, "max_bytes", of.Max, "max_msgs", of.MaxMsgs, "next", next)
		t.warned, warned = now, true
	}
	if t.full && !full {
		log.Info("dead letters have room again", "percent", int(100*of.Full()))
	}
	t.full = full
	return warned
}

var (
	parked     = prometheus.NewDesc("relay_parked_messages", "Messages in the retry stream, waiting or due, of all routes and instances.", nil, nil)
	dlqBytes   = prometheus.NewDesc("relay_dlq_bytes", "Size of the dead letters: entries, and bodies that are stored apart.", []string{"part"}, nil)
	dlqMax     = prometheus.NewDesc("relay_dlq_max_bytes", "Bound in bytes of each part of the dead letters (dlq.max_bytes); 0: none.", nil, nil)
	dlqFull    = prometheus.NewDesc("relay_dlq_capacity_ratio", "Used share of dlq.max_bytes. From 0.8 on the log warns.", nil, nil)
	dlqDropped = prometheus.NewDesc("relay_dlq_dropped_total", "Dead letters that this instance dropped to make room (dlq.on_full: drop_oldest).", nil, nil)
)

func (t *use) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(parked, float64(t.parked.Load()))
	u := t.usage.Load()
	if u == nil {
		return
	}
	gauge(dlqBytes, float64(u.Bytes), "entries")
	gauge(dlqBytes, float64(u.Bodies), "bodies")
	gauge(dlqMax, float64(u.Max))
	gauge(dlqFull, u.Full())
	ch <- prometheus.MustNewConstMetric(dlqDropped, prometheus.CounterValue, float64(u.Dropped))
}
