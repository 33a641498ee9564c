package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/hangup"
	"github.com/relaymq/relay/cmd/relay/internal/logging"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

// How the service reads its configuration again. Everything is checked before anything changes, and the configuration that runs goes
// on when something is wrong. Nothing of a configuration travels: each instance reads its own file.

// What became of a reload.
const (
	reloadDone    = "done"
	reloadRefused = "refused" // it cannot be: nothing has changed
	reloadInvalid = "invalid" // the configuration is at fault: nothing has changed
)

// reloadTimeout bounds what comes before the change.
const reloadTimeout = time.Minute

func reloadSubject(service string) string { return service + ".ctl.act.reload" }

// reloadRequest is what relay reload asks of instances.
type reloadRequest struct {
	// Host is that of the instances that are meant, Instance the one; neither is all.
	Host     string `json:"host,omitempty"`
	Instance string `json:"instance,omitempty"`
	By       string `json:"by,omitempty"`
	// DeliverAgain permits durables that deliver what was handled before; see [consumer.Change].
	DeliverAgain bool `json:"deliver_again,omitempty"`
}

// reloadReport is what an instance says of a reload: at first that it begins, with no outcome, and then what became of it.
type reloadReport struct {
	Instance string   `json:"instance"`
	Host     string   `json:"host"`
	Outcome  string   `json:"outcome,omitempty"`
	Faults   []string `json:"faults,omitempty"`
	// What was to change: routes, keys that count from now on, keys that count when the process is started again.
	Added        []string `json:"added,omitempty"`
	Changed      []string `json:"changed,omitempty"`
	Removed      []string `json:"removed,omitempty"`
	Live         []string `json:"live,omitempty"`
	NeedsRestart []string `json:"needs_restart,omitempty"`
	// Routes is what became of the routes.
	Routes     consumer.Changed `json:"routes"`
	Warnings   []string         `json:"warnings,omitempty"`
	Generation int              `json:"generation"`
	Hash       string           `json:"hash"`
	Took       string           `json:"took,omitempty"`
}

// reloader reads the configuration of a service again.
type reloader struct {
	s        *service
	instance string
	host     string
	hup      <-chan os.Signal // what came before relay was ready is done when it is
	asks     chan reloadAsk

	current    *config.Config // of run only
	digest     string         // of the files of the last reload, done or not; of run only
	seen       string         // another digest, at the last look of reload.watch; of run only
	restless   bool           // the last look of reload.watch was the first to see what is there now; of run only
	generation int            // of run only

	mu     sync.Mutex
	status control.ConfigStatus
	counts map[string]int
	good   time.Time

	running atomic.Pointer[config.Config] // current, for all others
}

// reloadAsk is a reload that somebody waits for.
type reloadAsk struct {
	by    string
	again bool // DeliverAgain
	told  func(reloadReport)
}

func newReloader(s *service) *reloader {
	host, _ := os.Hostname()
	r := &reloader{
		s: s, host: host, hup: hangup.C, asks: make(chan reloadAsk, 16), current: s.cfg, generation: 1, good: time.Now(),
		counts: map[string]int{reloadDone: 0, reloadRefused: 0, reloadInvalid: 0},
	}
	r.digest = r.files(s.cfg)
	r.running.Store(s.cfg)
	r.status = control.ConfigStatus{Generation: 1, Hash: s.cfg.Source.Hash, Loaded: r.good}
	r.digests(&r.status)
	hangup.Catch()
	return r
}

// digests tells which configuration runs. What counts only once the process is started again is as it was started.
func (r *reloader) digests(c *control.ConfigStatus) {
	_, started := r.s.cfg.Digests()
	c.Routes, c.Rest = r.current.Digests()
	c.Rest.Anew, c.Rest.Own = started.Anew, started.Own
}

// files is the digest of all that a configuration is read from.
func (r *reloader) files(cfg *config.Config) string {
	if cfg.Source.File == "" {
		return ""
	}
	return config.Digest(append([]string{cfg.Source.File}, cfg.Source.Files...)...)
}

func (r *reloader) stop() { hangup.Stop() }

// run reloads when it is told to, until ctx is done.
func (r *reloader) run(ctx context.Context) {
	r.instance = r.s.relay.Instance()
	r.s.relay.TellConfig(r.told())
	sub, err := r.s.conn.Subscribe(reloadSubject(r.s.cfg.Service), r.answer)
	if err != nil {
		r.s.log.Error("relay cannot answer relay reload; SIGHUP works", "error", err)
	} else {
		defer func() { _ = sub.Unsubscribe() }()
	}
	look := time.NewTimer(time.Hour)
	defer look.Stop()
	for {
		look.Stop()
		if every := r.current.Reload.Watch; every > 0 {
			if r.restless {
				every = settleTime(every)
			}
			look.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.hup:
			r.reload(ctx, reloadAsk{by: "SIGHUP"})
		case a := <-r.asks:
			a.told(r.reload(ctx, a))
		case <-look.C:
			if r.settled() {
				r.reload(ctx, reloadAsk{by: "reload.watch"})
			}
		}
	}
}

// settleTime is for how long another content has to stay before it is taken: a quarter of the time between two looks, a second at most.
func settleTime(every time.Duration) time.Duration { return min(every/4, time.Second) }

// settled looks at the files, and tells whether they have another content, which was there at the last look already: a file that
// somebody still writes may be valid, with fewer routes.
func (r *reloader) settled() bool {
	now, before := r.files(r.current), r.seen
	r.seen = now
	r.restless = now != r.digest && now != before
	return now != r.digest && now == before
}

// answer takes a request of an operator. It does not block.
func (r *reloader) answer(m *nats.Msg) {
	var q reloadRequest
	if !subject.Inbox(m.Reply, r.s.conn.Opts.InboxPrefix) || json.Unmarshal(m.Data, &q) != nil || q.Host != "" && q.Host != r.host || q.Instance != "" && q.Instance != r.instance {
		return
	}
	tell := func(rep reloadReport) {
		if data, err := json.Marshal(rep); err == nil {
			_ = m.Respond(data)
		}
	}
	first := reloadReport{Instance: r.instance, Host: r.host}
	select {
	case r.asks <- reloadAsk{by: cli.Printable(q.By), again: q.DeliverAgain, told: tell}:
	default:
		first.Outcome, first.Faults = reloadRefused, []string{"too many reloads are waiting already"}
	}
	tell(first)
}

// reload reads the configuration and changes what runs to it.
func (r *reloader) reload(ctx context.Context, ask reloadAsk) reloadReport {
	began := time.Now()
	rep := reloadReport{Instance: r.instance, Host: r.host}
	r.s.notify.reloading()
	digest := r.files(r.current) // before they are read: what is written from now on is another content
	cfg, err := r.s.flags.Load()
	var faults config.Faults
	switch {
	case errors.As(err, &faults):
		rep.Outcome = reloadInvalid
		for _, f := range faults {
			rep.Faults = append(rep.Faults, f.String())
		}
	case err != nil:
		rep.Outcome, rep.Faults = reloadInvalid, []string{err.Error()}
	default:
		if !slices.Equal(cfg.Source.Files, r.current.Source.Files) {
			digest = r.files(cfg) // before the change, which may take a while
		}
		r.change(ctx, cfg, ask, &rep)
	}
	if rep.Outcome != reloadRefused { // which may work later, with the same content
		r.digest = digest
	}
	rep.Generation, rep.Hash, rep.Took = r.generation, r.current.Source.Hash, time.Since(began).Round(time.Millisecond).String()
	r.note(rep, ask.by)
	r.s.notify.reloaded()
	return rep
}

// change makes the configuration that was read the one that runs.
func (r *reloader) change(ctx context.Context, cfg *config.Config, ask reloadAsk, rep *reloadReport) {
	refuse := func(err error) {
		rep.Outcome = reloadRefused
		for line := range strings.Lines(transient.Plain(err).Error()) {
			rep.Faults = append(rep.Faults, strings.TrimSpace(line))
		}
	}
	d := config.Compare(r.s.cfg, r.current, cfg)
	if slices.Contains(d.NeedsRestart, "service") {
		cfg.KeepService(r.s.cfg)
		d.Added, d.Changed, d.Removed = nil, nil, nil
		e := config.Compare(r.s.cfg, r.current, cfg)
		d.Added, d.Changed, d.Removed = e.Added, e.Changed, e.Removed
	}
	rep.Added, rep.Changed, rep.Removed, rep.Live, rep.NeedsRestart = d.Added, d.Changed, d.Removed, d.Live, d.NeedsRestart
	for _, w := range cfg.Source.Warnings {
		if !w.Note {
			rep.Warnings = append(rep.Warnings, w.String())
		}
	}
	limited, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	js, err := cli.NewJetStream(r.s.conn.Conn, r.s.cfg)
	if err != nil {
		refuse(err)
		return
	}
	built, err := makeRoutes(cfg, r.s.conn.Conn, js, r.s.log, func(name string) bool { return slices.Contains(d.Added, name) || slices.Contains(d.Changed, name) })
	if err != nil {
		refuse(err)
		return
	}
	c := consumer.Change{Remove: d.Removed, Limits: cfg.Limits, DeliverAgain: ask.again}
	if c.Limits == nil {
		c.Limits = map[string]consumer.Limit{} // none any more
	}
	for _, rt := range built {
		if slices.Contains(d.Added, rt.Name) {
			c.Add = append(c.Add, rt)
		} else {
			c.Update = append(c.Update, rt)
		}
	}
	if slices.ContainsFunc(d.Live, func(key string) bool { return strings.HasPrefix(key, "nats.") }) {
		if err := r.s.conn.Renew(limited); err != nil {
			refuse(err)
			return
		}
	}
	if slices.Contains(d.Live, "streams") {
		if err := ensureStreams(limited, js, cfg.Streams, r.s.stockClient(), r.s.log); err != nil {
			refuse(fmt.Errorf("streams: %w", err))
			return
		}
	}
	if len(built)+len(d.Removed) > 0 || slices.Contains(d.Live, "limits") {
		if rep.Routes, err = r.s.relay.Change(limited, c); err != nil {
			refuse(err)
			return
		}
	}
	r.s.relay.SetDrain(cfg.Drain)
	if level, err := logging.Level(cfg.Log.Level); err == nil { // it was validated
		r.s.level.Set(level)
	}
	rep.Outcome, r.current = reloadDone, cfg
	r.running.Store(cfg)
	r.generation++
}

// note tells of a reload wherever somebody may look.
func (r *reloader) note(rep reloadReport, by string) {
	now := time.Now()
	r.mu.Lock()
	r.counts[rep.Outcome]++
	if rep.Outcome == reloadDone {
		r.good = now
		r.status = control.ConfigStatus{Generation: rep.Generation, Hash: rep.Hash, Loaded: now, NeedsRestart: rep.NeedsRestart}
		r.digests(&r.status)
	} else {
		r.status.Failed, r.status.FailedAt = rep.Outcome+": "+strings.Join(rep.Faults, "; "), now
	}
	r.mu.Unlock()
	r.s.relay.TellConfig(r.told())
	why := strings.Join(rep.Faults, "; ")
	attrs := []any{"by", by, "outcome", rep.Outcome, "generation", rep.Generation, "config_sha256", rep.Hash, "took", rep.Took}
	if rep.Outcome != reloadDone {
		r.s.log.Error("the configuration was not reloaded; relay keeps the configuration that it has", append(attrs, "error", why)...)
		r.s.relay.Report(eventkind.ReloadFailed, event.Data{Text: "the configuration was not reloaded: " + rep.Outcome, Why: why, By: by})
		return
	}
	r.s.log.Info("the configuration was reloaded", append(attrs, "added", rep.Added, "changed", rep.Changed, "changed_live", rep.Routes.Live, "removed", rep.Removed, "live", rep.Live, "needs_restart", rep.NeedsRestart)...)
	r.s.relay.Report(eventkind.ReloadDone, event.Data{Text: fmt.Sprintf("generation %d of the configuration runs", rep.Generation), By: by})
}

func (r *reloader) told() control.ConfigStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// collect has the metrics of the configuration.
func (r *reloader) collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	successful := 1.0
	if r.status.Failed != "" {
		successful = 0
	}
	gauge(reloadSuccessful, successful)
	gauge(reloadSuccessTime, float64(r.good.UnixMilli())/1000)
	gauge(configInfo, 1, fmt.Sprint(r.status.Generation), r.status.Hash)
	for result, n := range r.counts {
		ch <- prometheus.MustNewConstMetric(reloadsTotal, prometheus.CounterValue, float64(n), result)
	}
}

var (
	reloadSuccessful  = prometheus.NewDesc("relay_config_last_reload_successful", "0 when the last reload of the configuration was refused and changed nothing; 1 otherwise.", nil, nil)
	reloadSuccessTime = prometheus.NewDesc("relay_config_last_reload_success_timestamp_seconds", "When the configuration that runs was loaded.", nil, nil)
	reloadsTotal      = prometheus.NewDesc("relay_config_reloads_total", "Reloads of the configuration: done, refused or invalid.", []string{"result"}, nil)
	configInfo        = prometheus.NewDesc("relay_config_info", "1; the labels say which configuration runs.", []string{"generation", "hash"}, nil)
)
