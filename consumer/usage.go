package consumer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/dlq"
)

const (
	// usageEvery is how often an instance looks at how full the dead letters are, and the retry stream.
	usageEvery = 15 * time.Second
	// nearlyFull is the share of a bound of one of relay's own streams from which it warns, and repeatWarning how often it says so again.
	nearlyFull    = 0.8
	repeatWarning = time.Hour
)

// retention watches the room for dead letters, and what is parked. That it is there is a matter of readiness, how full it is
// is not: a relay that is taken out of service because its dead letters fill up would help nobody.
type retention struct {
	usage  atomic.Pointer[dlq.Usage]
	parked atomic.Int64 // messages in the retry stream
	dead   deadCount
	warned time.Time
	full   bool
}

func (r *Relay) watchUsage(ctx context.Context) {
	own := ownWatch{r: r, failing: make(map[string]time.Time)}
	for {
		u, err := r.dead.Usage(ctx)
		own.asked(ctx, "the dead letters", err)
		if err == nil {
			if r.retention.note(u, time.Now(), r.cfg.DLQ.OnFull, r.log) {
				r.reportFilling(u)
			}
			r.countDead(ctx, u, time.Now())
		}
		n, err := r.retries.Messages(ctx)
		own.asked(ctx, "stream "+r.retryStreamName(), err)
		if err == nil {
			r.retention.parked.Store(n)
		}
		if r.lives.Load() != nil {
			_, err := r.js.Stream(ctx, "KV_"+r.instancesName())
			own.asked(ctx, "bucket "+r.instancesName(), err)
		}
		own.rest(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// ownWatch notes what of relay's own is missing, or has not answered for a while.
type ownWatch struct {
	r       *Relay
	failing map[string]time.Time // since when
}

func (w *ownWatch) asked(ctx context.Context, what string, err error) {
	now := time.Now()
	if err == nil {
		delete(w.failing, what)
		w.r.troubles.Mended(what, now)
		return
	}
	if ctx.Err() != nil {
		return
	}
	since, known := w.failing[what]
	if !known {
		since = now
		w.failing[what] = now
	}
	if now.Sub(since) >= silentFor || !away.Is(err) {
		w.r.troubles.Note(what, err, now)
	}
}

// rest waits for the next look, which comes soon while something is away, or since something could not be stored.
func (w *ownWatch) rest(ctx context.Context) {
	stored := w.r.stored()
	for began := time.Now(); ; {
		pause(ctx, beat.Until(checkAgain))
		trouble := w.r.trouble.Load() > began.UnixNano()
		if ctx.Err() != nil || len(w.failing) > 0 || trouble || w.r.stored() != stored || time.Since(began) >= w.r.amongMany(usageEvery) {
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
func (t *retention) note(u dlq.Usage, now time.Time, onFull string, log *slog.Logger) (warned bool) {
	t.usage.Store(&u)
	full := u.Full() >= nearlyFull
	if full && (!t.full || now.Sub(t.warned) >= repeatWarning) {
		next := whenDeadAreFull(onFull) + ", or raise " + u.Nearest()
		log.Warn("dead letters are nearly full", "percent", int(100*u.Full()), "entries", u.Entries, "bytes", u.Bytes,
			"bodies", u.Bodies, "max_bytes", u.Max, "max_msgs", u.MaxMsgs, "next", next)
		t.warned, warned = now, true
	}
	if t.full && !full {
		log.Info("dead letters have room again", "percent", int(100*u.Full()))
	}
	t.full = full
	return warned
}

var (
	parked     = prometheus.NewDesc("relay_parked_messages", "Messages in the retry stream, waiting or due, of all routes and instances.", nil, nil)
	dlqBytes   = prometheus.NewDesc("relay_dlq_bytes", "Size of the dead letters: entries, and bodies that are stored apart.", []string{"part"}, nil)
	dlqMax     = prometheus.NewDesc("relay_dlq_max_bytes", "Bound of either part (dlq.max_bytes); 0 without one.", nil, nil)
	dlqFull    = prometheus.NewDesc("relay_dlq_capacity_ratio", "Used share of the bound; a warning is logged from 0.8.", nil, nil)
	dlqDropped = prometheus.NewDesc("relay_dlq_dropped_total", "Dead letters that this instance dropped to make room (dlq.on_full: drop_oldest).", nil, nil)
)

func (t *retention) collect(ch chan<- prometheus.Metric) {
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
