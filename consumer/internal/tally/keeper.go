package tally

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// every is how often a tally is written, and quiet how often while nothing changes but messages are in hand: an instance that says
	// nothing for longer counts as killed.
	every = 5 * time.Second
	quiet = 15 * time.Second
	// rest is the pause between the writes of two tallies: an instance with a thousand durables writes fifty a second at most.
	rest = 20 * time.Millisecond
	// auditEvery is how often a ledger is compared with the server for the metrics. With many tallies it is less often: one each auditRest.
	auditEvery = time.Minute
	auditRest  = 250 * time.Millisecond
	// writeTimeout bounds one write with its audit.
	writeTimeout = 5 * time.Second
	// contentAge is how old an answer about a stream may be.
	contentAge = 5 * time.Second
)

// Patience bounds what a durable waits for its ledger, at its begin and at its end.
const Patience = 2 * time.Second

// Config is what a [Keeper] works with. All of it is needed.
type Config struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	API      string // prefix of the JetStream API's subjects
	Looks    *looks.Streams
	Service  string
	Instance string
	Retry    string // the retry stream
	Upkeep   Upkeep
	// Tallies are those of the durables that run.
	Tallies func() []*Tally
}

// Upkeep knows what happens to relay's own streams.
type Upkeep interface {
	// Operated are records of what operators did with messages in the retry stream, if that is known.
	Operated() (list []dlq.Job, known bool)
	// RetryEdited is when somebody last edited the retry stream, and when its oldest message was last another one.
	RetryEdited() (edited, moved time.Time)
	// LostParked says that n parked messages of a durable are lost for certain.
	LostParked(ctx context.Context, durable string, n uint64)
}

// Keeper looks after the tallies of an instance. Make it with [NewKeeper].
type Keeper struct {
	cfg  Config
	book *audit.Book

	mu         sync.Mutex
	unfinished []*audit.Writer // of tallies that are over, and whose last addition could not be written
}

// NewKeeper asks nobody.
func NewKeeper(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

// Open gives it the ledgers that the start has opened. Nothing is written before that.
func (k *Keeper) Open(book *audit.Book) { k.book = book }

// Run has all tallies written every few seconds, and audited now and then, until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	var finish time.Time
	for ctx.Err() == nil {
		transient.Pause(ctx, beat.Until(time.Second))
		if now := time.Now(); !now.Before(finish) {
			finish = now.Add(every)
			k.finish(ctx)
		}
		list := k.cfg.Tallies()
		for i, t := range list {
			now := time.Now()
			if ctx.Err() != nil {
				return
			}
			again := k.auditAgain(now)
			if again == auditEvery {
				again = max(again, time.Duration(len(list))*auditRest)
			}
			if t.audited.IsZero() { // one after the other
				t.audited = now.Add(time.Duration(i)*auditRest - again)
			}
			if now.Before(t.next) {
				continue
			}
			t.next = now.Add(every)
			call, cancel := context.WithTimeout(ctx, writeTimeout)
			err := t.Write(call)
			if err == nil && now.Sub(t.audited) >= again {
				t.audited = now
				t.audit(call, list)
			}
			cancel()
			transient.Pause(ctx, rest)
		}
	}
}

// finishLater has the last addition of a tally written when that can be.
func (k *Keeper) finishLater(w *audit.Writer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unfinished = append(k.unfinished, w)
}

// finish tries again to write last additions.
func (k *Keeper) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	k.mu.Lock()
	list := k.unfinished
	k.unfinished = nil
	k.mu.Unlock()
	for _, w := range list {
		if err := w.FinishAgain(ctx, k.book); err != nil {
			k.finishLater(w)
		}
	}
}

// auditAgain is how long after an audit of a ledger the next one is. Soon after somebody edited the retry stream, or may have purged it: its
// oldest messages are others now.
func (k *Keeper) auditAgain(now time.Time) time.Duration {
	edited, moved := k.cfg.Upkeep.RetryEdited()
	switch {
	case now.Sub(edited) < auditEvery:
		return 0
	case now.Sub(moved) < auditEvery:
		return auditEvery / 4
	}
	return auditEvery
}

var (
	auditedDesc = prometheus.NewDesc("relay_audit_messages",
		"The ledger of a durable, by side. came and through: counts of relay, of all instances since the ledger began. waiting: the count of the server.", []string{"stream", "durable", "side"}, nil)
	unexplainedDesc = prometheus.NewDesc("relay_audit_unexplained_messages",
		"Messages by which the ledger and the server differ and that no crash explains; see relay audit.", []string{"stream", "durable"}, nil)
)

// Describe sends what Collect sends once ledgers were audited; see prometheus.Collector.
func Describe(ch chan<- *prometheus.Desc) {
	ch <- auditedDesc
	ch <- unexplainedDesc
}

// Collect sends what the last audits said.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	for _, t := range k.cfg.Tallies() {
		b := t.Balance()
		if b == nil || b.Verdict == audit.Unknown {
			continue
		}
		gauge := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{b.Stream, b.Durable}, labels...)...)
		}
		gauge(auditedDesc, b.Carried+b.Total.In(), "came")
		gauge(auditedDesc, b.Total.Ended(), "through")
		gauge(auditedDesc, uint64(b.Outstanding)+b.Parked, "waiting")
		gauge(unexplainedDesc, b.Unexplained())
	}
}
