package schedule

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/transient"
)

// Results of runs, as records, metrics and the log name them.
const (
	Published = "published"
	Duplicate = "duplicate" // its stream had it already: another instance was first
	Missed    = "missed"    // nobody ran when it was due, and catch_up left it out
	Failed    = "failed"    // one try failed; it is tried again
)

// DelayedName stands for all delayed messages where a schedule is named. No schedule can have this name.
const DelayedName = "~"

const (
	look = 5 * time.Second // the longest time between two looks at the records, and at whether the stream of delayed messages is there
	// patience is how long the claim of another instance stands before this one takes it for dead.
	patience = 10 * time.Second
	// askAgain is the time between two questions whether an instance with a newer definition lives, and silence is how long it may take
	// to answer.
	askAgain = 10 * time.Second
	silence  = 20 * time.Second
	// late is how late a run may be before catch_up: none leaves it out.
	late    = time.Minute
	request = 10 * time.Second
	// ackWait is how late a due message may be that was delivered over a connection which was lost. What is in hand for longer has it extended.
	ackWait = 5 * time.Second
	// lookAtFill is the time between two looks at how full the streams of delayed messages are.
	lookAtFill = 15 * time.Second
	atOnce     = 64
	// handedAtOnce is how many due messages are on their way at once: those whose stream does not answer are, for the time of a request each.
	handedAtOnce = 1024
	mostWait     = time.Minute
	longest      = 48 * time.Hour // of missed runs that are counted one by one
)

// Config is what a [Runner] works with.
type Config struct {
	Service   string
	Instance  string // names this process among those that share the records
	Replicas  int    // of the stream and the bucket
	Schedules []Schedule
	Later     Limits // of delayed messages
	// Own are patterns of where nothing is published, beside what begins with the name of the service or belongs to the server.
	Own    []string
	Logger *slog.Logger
}

// Runner publishes what is due: the runs of its schedules, and delayed messages of the service.
type Runner struct {
	cfg  Config
	js   jetstream.JetStream
	runs *prometheus.CounterVec
	now  func() time.Time // for tests

	patience, askAgain, silence time.Duration

	fills atomic.Pointer[[]fill]

	mu       sync.Mutex
	troubles map[string]trouble
	failing  map[string]failure // delayed messages that no stream takes, by where they wait; of pull only
}

// failure is a delayed message that was not taken.
type failure struct {
	err error
	at  time.Time
}

type trouble struct {
	err    error
	since  time.Time
	logged time.Time
}

// New makes a runner. [Runner.Run] starts it.
func New(js jetstream.JetStream, cfg Config) *Runner {
	for i := range cfg.Schedules {
		cfg.Schedules[i] = cfg.Schedules[i].WithDefaults()
	}
	return &Runner{
		cfg: cfg, js: js, now: time.Now, patience: patience, askAgain: askAgain, silence: silence, troubles: map[string]trouble{},
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_schedule_runs_total", Help: `Runs of schedules by result; delayed messages have the schedule "~".`,
		}, []string{"schedule", "result"}),
	}
}

// Collector has the metrics.
func (r *Runner) Collector() prometheus.Collector { return collector{r} }

type collector struct{ r *Runner }

var (
	descMsgs  = prometheus.NewDesc("relay_later_messages", "Delayed messages that wait, by stream.", []string{"stream"}, nil)
	descBytes = prometheus.NewDesc("relay_later_bytes", "Size of the delayed messages that wait, by stream.", []string{"stream"}, nil)
	descRatio = prometheus.NewDesc("relay_later_capacity_ratio", "Used share of later.max_msgs or of later.max_bytes, whichever is greater.", []string{"stream"}, nil)
)

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	c.r.runs.Describe(ch)
	ch <- descMsgs
	ch <- descBytes
	ch <- descRatio
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.r.runs.Collect(ch)
	list := c.r.fills.Load()
	if list == nil {
		return
	}
	for _, f := range *list {
		ch <- prometheus.MustNewConstMetric(descMsgs, prometheus.GaugeValue, float64(f.msgs), f.stream)
		ch <- prometheus.MustNewConstMetric(descBytes, prometheus.GaugeValue, float64(f.bytes), f.stream)
		ch <- prometheus.MustNewConstMetric(descRatio, prometheus.GaugeValue, f.ratio, f.stream)
	}
}

// Run publishes until ctx is done. What does not work is tried again; see [Runner.Ready].
func (r *Runner) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { r.delayed(ctx) })
	if len(r.cfg.Schedules) > 0 {
		all.Go(func() { r.records(ctx) })
	}
	all.Wait()
}

// Ready is nil, or what does not work of the schedules, with since when. Delayed messages that cannot be published are in the log and
// the metrics only: whoever may publish one must not be able to make relay unready.
func (r *Runner) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(r.troubles)) {
		t := r.troubles[what]
		var fault *ownstream.Error
		if unheard(what) && !errors.As(t.err, &fault) {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w (since %s)", what, t.err, t.since.UTC().Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

// What delayed messages wait for: their stream, and whoever is to get them.
const (
	laterTrouble   = "delayed messages"
	delayedTrouble = "delayed messages that are due"
	intakeTrouble  = "messages that are to be published later"
	fillTrouble    = "room for delayed messages in "
)

// unheard tells whether publishers can cause it.
func unheard(what string) bool {
	return what == laterTrouble || what == delayedTrouble || what == intakeTrouble || strings.HasPrefix(what, fillTrouble)
}

// Troubles are all that does not work, with what publishers can cause: for the status.
func (r *Runner) Troubles() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(r.troubles)) {
		t := r.troubles[what]
		list = append(list, fmt.Sprintf("%s: %v (since %s)", what, t.err, t.since.UTC().Format(time.RFC3339)))
	}
	return list
}

// note says that what does not work, and nil that it works.
func (r *Runner) note(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t, there := r.troubles[what]
	switch {
	case err == nil && there:
		delete(r.troubles, what)
		r.cfg.Logger.Info("working again: "+what, "after", time.Since(t.since).Round(time.Millisecond))
	case err != nil:
		if !there {
			t.since = time.Now()
		}
		t.err = err
		if time.Since(t.logged) >= time.Minute {
			t.logged = time.Now()
			r.cfg.Logger.Warn("not working, retrying: "+what, "since", t.since.UTC(), "error", err)
		}
		r.troubles[what] = t
	}
}

// watching is what this instance knows of a record that others may write.
type watching struct {
	revision uint64
	seen     time.Time // when the revision was first seen
	definition
}

// records publishes the runs of schedules.
func (r *Runner) records(ctx context.Context) {
	var records *Records
	var watch jetstream.KeyWatcher
	var changed <-chan jetstream.KeyValueEntry
	unwatch := func() {
		if watch != nil {
			kvwatch.Stop(watch)
		}
		watch, changed = nil, nil
	}
	defer unwatch()
	known := make(map[string]*watching)
	for ctx.Err() == nil {
		if records == nil {
			open, err := bounded(ctx, r.js, func(ctx context.Context) (*Records, error) {
				return OpenRecords(ctx, r.js, r.cfg.Service, r.cfg.Replicas)
			})
			if r.note(ctx, "schedules", err); err != nil {
				sleep(ctx, time.Second)
				continue
			}
			records = open
			if w, err := records.kv.WatchAll(ctx, jetstream.UpdatesOnly()); err == nil { // without it the next look is in time
				watch, changed = w, w.Updates()
			}
		}
		wake := r.now().Add(look)
		for _, s := range r.cfg.Schedules {
			if known[s.Name] == nil {
				known[s.Name] = &watching{}
			}
			next, err := bounded(ctx, r.js, func(ctx context.Context) (time.Time, error) { return r.turn(ctx, records, s, known[s.Name]) })
			if errors.Is(err, errRaced) {
				next, err = r.now().Add(100*time.Millisecond), nil
			}
			if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
				records = nil // somebody deleted it: it is made anew
				unwatch()
			}
			if r.note(ctx, "schedule "+s.Name, err); err != nil {
				next = r.now().Add(time.Second)
				if !r.js.Conn().IsConnected() {
					next = r.now().Add(100 * time.Millisecond) // or the run of a second would be missed
				}
			}
			if next.Before(wake) {
				wake = next
			}
			if records == nil {
				break
			}
		}
		timer := time.NewTimer(max(wake.Sub(r.now()), 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case _, open := <-changed:
			if !open {
				changed = nil
			}
		}
		timer.Stop()
	}
}

// turn does what is to be done about a schedule now, and returns when to look again at the latest.
func (r *Runner) turn(ctx context.Context, records *Records, s Schedule, known *watching) (time.Time, error) {
	now := r.now()
	rec, revision, err := records.Get(ctx, s.Name)
	if err != nil {
		return now, err
	}
	if revision != known.revision {
		known.revision, known.seen = revision, time.Now()
	}
	if rec.Timing != s.Timing() {
		return r.differs(ctx, records, s, rec, revision, &known.definition)
	}
	known.counted = true
	if rec.Doubt != nil && !rec.Doubt.Answered {
		rec.Doubt.Answered = true
		_, err = records.put(ctx, s.Name, rec, revision)
		return now, err
	}
	if rec.Asked != nil {
		return now, r.asked(ctx, records, s, rec, revision)
	}
	if rec.Paused != nil {
		return now.Add(look), nil
	}
	if rec.Next.IsZero() {
		if rec.Next, err = s.Next(now); err != nil {
			return now, err
		}
		rec.Claim = nil
		_, err = records.put(ctx, s.Name, rec, revision)
		return rec.Next, err
	}
	if now.Before(rec.Next) {
		return rec.Next, nil
	}
	if rec.Claim != nil && rec.Claim.Instance != r.cfg.Instance {
		if free := known.seen.Add(r.patience); time.Now().Before(free) {
			return now.Add(time.Until(free)), nil
		}
		r.cfg.Logger.Warn("a schedule is taken over: the instance that published its run did not finish", "schedule", s.Name, "run", rec.Claim.Run, "from", rec.Claim.Instance)
	}
	return r.due(ctx, records, s, rec, revision)
}

// due publishes the run that is due. When several are, it is the latest of them, unless one was claimed already.
func (r *Runner) due(ctx context.Context, records *Records, s Schedule, rec Record, revision uint64) (time.Time, error) {
	run, after, missed, err := s.latest(rec.Next, r.now())
	if err != nil {
		return r.now(), err
	}
	if rec.Claim != nil {
		run = rec.Claim.Run // it may be stored already, and its id must be the same
	}
	leftOut := s.CatchUp == CatchUpNone && r.now().Sub(run) > late && rec.Claim == nil
	if leftOut {
		rec.Last = &Run{Run: run, At: r.now().UTC(), Result: Missed, Instance: r.cfg.Instance}
		missed++
	} else {
		if rec.Claim == nil {
			rec.Claim = &Claim{Secret: rand.Text()}
		}
		rec.Claim.Run, rec.Claim.Instance = run, r.cfg.Instance
		if _, err = records.put(ctx, s.Name, rec, revision); err != nil {
			return r.now(), err
		}
		if rec.Last, err = r.publish(ctx, s, run, secretID(fmt.Sprintf("%s.%s@%s", r.cfg.Service, s.Name, run.UTC().Format(time.RFC3339)), rec.Claim.Secret)); err != nil {
			return r.now(), err
		}
	}
	last := rec.Last
	_, err = records.Change(ctx, s.Name, func(rec *Record) { // an operator may have paused it meanwhile
		if rec.Timing == s.Timing() && rec.Next.Before(after) && (rec.Claim == nil || rec.Claim.Instance == r.cfg.Instance) {
			rec.Claim, rec.Next, rec.Last = nil, after, last
		}
	})
	if err != nil {
		return r.now(), err
	}
	if missed > 0 {
		r.runs.WithLabelValues(s.Name, Missed).Add(float64(missed))
		r.cfg.Logger.Warn("runs of a schedule were missed: no instance ran, or nothing could be published", "schedule", s.Name, "missed", missed, "next", after)
	}
	return after, nil
}

// asked publishes the run that an operator asked for.
func (r *Runner) asked(ctx context.Context, records *Records, s Schedule, rec Record, revision uint64) error {
	at := rec.Asked.At
	if rec.Asked.Secret == "" {
		rec.Asked.Secret = rand.Text()
		var err error
		if revision, err = records.put(ctx, s.Name, rec, revision); err != nil {
			return err
		}
	}
	done, err := r.publish(ctx, s, at, secretID(fmt.Sprintf("%s.%s@%s-asked", r.cfg.Service, s.Name, at.UTC().Format(time.RFC3339Nano)), rec.Asked.Secret))
	if err != nil {
		return err
	}
	rec.Asked, rec.Last = nil, done
	_, err = records.put(ctx, s.Name, rec, revision)
	return err
}

// latest is the last run from first on that is not after now, the one that follows, and how many before it were missed.
func (s Schedule) latest(first, now time.Time) (run, after time.Time, missed int, err error) {
	run = first
	if recent, err := s.Next(now.Add(-longest)); err == nil && s.Every == 0 && recent.After(first) && !recent.After(now) {
		run, missed = recent, 1 // of a year of minutes nobody needs the number
	}
	if s.Every > 0 {
		step := int64(s.Every / time.Second)
		if behind := (now.Unix() - first.Unix()) / step; behind > 0 {
			run, missed = first.Add(time.Duration(behind)*s.Every), int(behind)
		}
	}
	for {
		if after, err = s.Next(run); err != nil || after.After(now) {
			return run, after, missed, err
		}
		run, missed = after, missed+1
	}
}

// secretID is an id that nobody guesses: whoever did would publish something else with it, and the stream would take the message for a duplicate. The
// records of earlier versions have no secret.
func secretID(id, secret string) string {
	if secret == "" {
		return id
	}
	return id + "." + secret
}

func (r *Runner) publish(ctx context.Context, s Schedule, run time.Time, id string) (*Run, error) {
	m := &nats.Msg{Subject: s.Subject, Header: nats.Header{}, Data: []byte(s.Body)}
	for name, value := range s.Headers {
		m.Header.Set(name, value)
	}
	m.Header.Set("Relay-Schedule", s.Name)
	m.Header.Set("Relay-Schedule-Run", run.UTC().Format(time.RFC3339))
	ack, err := r.hand(ctx, m, id, s.Name)
	if err != nil {
		return nil, err
	}
	return &Run{Run: run, At: r.now().UTC(), Result: result(ack), Instance: r.cfg.Instance, Stream: ack.Stream, Sequence: ack.Sequence}, nil
}

func result(ack *jetstream.PubAck) string {
	if ack.Duplicate {
		return Duplicate
	}
	return Published
}

// hand publishes a message on its real subject, and counts it.
func (r *Runner) hand(ctx context.Context, m *nats.Msg, id, name string) (*jetstream.PubAck, error) {
	// It is tried again anyway: without a stream, the client's own tries would hold up the others for half a second each.
	ack, err := r.js.PublishMsg(ctx, m, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		err = fmt.Errorf("no stream holds subject %s: make one, or change the subject", m.Subject)
	}
	if err != nil {
		r.runs.WithLabelValues(name, Failed).Inc()
		return nil, err
	}
	r.runs.WithLabelValues(name, result(ack)).Inc()
	return ack, nil
}

// bounded calls f with the time that a request may take, and once more when the connection was lost meanwhile.
func bounded[T any](ctx context.Context, js jetstream.JetStream, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	return transient.Ask(ctx, js.Conn(), f)
}

// fetch hands the next messages of a consumer to each. It returns when there are none for a while, when the connection was lost and is back, or with what
// the server says of the consumer.
func (r *Runner) fetch(ctx context.Context, c jetstream.Consumer, each func(m jetstream.Msg) error) error {
	wait, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	wait, stop := transient.UntilBack(wait, r.js.Conn())
	defer stop()
	batch, err := c.Fetch(atOnce, jetstream.FetchContext(wait))
	if err != nil {
		return unlessOver(wait, err)
	}
	for m := range batch.Messages() {
		if err := each(m); err != nil {
			return err
		}
	}
	return unlessOver(wait, batch.Error())
}

// unlessOver is the error of a fetch, unless it ended because nothing came for so long.
func unlessOver(wait context.Context, err error) error {
	if over := wait.Err() != nil || errors.Is(err, nats.ErrTimeout); over {
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
