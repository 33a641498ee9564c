package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/admin"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/cmd/relay/internal/logging"
	"github.com/relaymq/relay/cmd/relay/internal/natsconn"
	"github.com/relaymq/relay/cmd/relay/internal/natsd"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/schedule"
	"github.com/relaymq/relay/internal/transient"
)

// Behind makes what the console of a service shows and does. running is the configuration that runs now; stop ends what the console runs.
type Behind func(cl *cli.Client, running func() *config.Config, log *slog.Logger) (b console.Backend, stop func())

func newRun(o *cli.Options, behind Behind) *cobra.Command {
	var adopt bool
	var demo string
	c := &cobra.Command{
		Use: "run", Short: "run the service", Args: cli.Args(cobra.NoArgs),
		Long: `Run delivers the messages of all routes until it is told to stop. SIGTERM or SIGINT drains: nothing is pulled any
more, what was not started goes back at once, and handlers may finish within the configured drain time. A second signal
exits at once, with code 3. A configuration that cannot work ends the start with code 2; relay waits for a
server or a stream that is only away.`,
		RunE: func(c *cobra.Command, _ []string) error {
			harden()
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			o.Env = os.Environ() // a reload reads it again
			forgetSettings()
			s := &service{cfg: cfg, adopt: adopt, demo: demo, flags: o, behind: behind}
			return s.run(c.Context())
		},
	}
	c.Flags().BoolVar(&adopt, "adopt", false, "change existing durables that have other settings")
	c.Flags().StringVar(&demo, "demo", "", "for a first look: feed the messages of this JSON lines file, and take free ports for taken ones")
	_ = c.MarkFlagFilename("demo", "jsonl")
	return c
}

// service is one `relay run`.
type service struct {
	cfg    *config.Config
	flags  *cli.Options
	behind Behind
	adopt  bool
	demo   string

	log    *slog.Logger
	level  slog.LevelVar
	notify notifier
	relay  *consumer.Relay
	later  *schedule.Runner
	conn   *natsconn.Conn
	reload *reloader
	natsd  *natsd.Server // nil with an external server

	console     *console.Console // nil: off
	consoleAddr string

	mu       sync.Mutex
	admins   []*admin.Server // of health and metrics; none when they are off
	starting error           // what readiness says before the relay is there
}

// run starts everything from the bottom up, and ends it from the top down.
func (s *service) run(ctx context.Context) (err error) {
	defer keepHeadroom()()
	out := logging.NewWriter(os.Stderr)
	defer out.Close()
	l := s.cfg.Log
	log, flush, err := logging.New(out, logging.Config{Level: l.Level, Dynamic: &s.level, Format: l.Format, Burst: l.Burst})
	if err != nil {
		return err
	}
	defer flush()
	s.log = log
	slog.SetDefault(log) // also for what libraries write with the package log
	if logging.JSON(out, l.Format) {
		defer func() { err = s.sayWhy(err) }()
	}
	s.sayWhat()
	s.starting = errors.New("starting")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.reload = newReloader(s)
	defer s.onSignals(cancel, out)()
	defer s.reload.stop()
	defer s.notify.begin(s.ready)()

	if err := s.startServer(ctx); err != nil {
		return whileStarting(ctx, cli.CannotStart(err))
	}
	if s.natsd != nil {
		defer s.natsd.Shutdown()
	}
	// Before anything is waited for: readiness says what.
	stopAdmin, err := s.startAdmin(ctx)
	if err != nil {
		return cli.CannotStart(err)
	}
	defer stopAdmin()
	err = s.patiently(ctx, "NATS", func() (err error) {
		s.conn, err = cli.Connect(ctx, s.cfg, access.Service, s.natsd, s.log)
		return err
	})
	if err != nil {
		return whileStarting(ctx, cli.CannotStart(err))
	}
	defer s.conn.Close()
	if err := s.newRelay(ctx); err != nil {
		return whileStarting(ctx, err)
	}
	stopConsole, err := s.showConsole()
	if err != nil {
		return err
	}
	defer stopConsole()
	go s.watch(ctx, cancel)
	var reloads sync.WaitGroup
	reloads.Go(func() { s.reload.run(ctx) })
	defer func() {
		cancel(nil)
		reloads.Wait()
	}()
	if s.demo != "" {
		go s.runDemo(ctx)
	}
	publishing, stopPublishing := context.WithCancel(ctx)
	var later sync.WaitGroup
	later.Go(func() {
		select {
		case <-s.relay.Opened(): // a route that has no durable yet may refuse a stream that already holds messages
			s.later.Run(publishing)
		case <-publishing.Done():
		}
	})
	err = s.relay.Run(ctx)
	stopPublishing()
	later.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil {
		s.log.Info("drained; bye")
	}
	return err
}

// patiently tries until that succeeds, or fails for a reason that does not pass by itself. Readiness says what is waited for,
// and the log once a minute.
func (s *service) patiently(ctx context.Context, what string, try func() error) error {
	var p transient.Patience
	var since, said time.Time
	for {
		err := try()
		if err == nil || ctx.Err() != nil || !transient.Is(err) {
			return err
		}
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		if now.Sub(said) >= time.Minute {
			said = now
			s.log.Warn("not working, retrying: "+what, "since", since.UTC(), "error", err)
		}
		s.mu.Lock()
		s.starting = fmt.Errorf("%s: %w (since %s)", what, err, since.UTC().Format(time.RFC3339))
		s.mu.Unlock()
		next := time.NewTimer(p.Next(maxPause))
		select {
		case <-ctx.Done():
		case <-next.C:
		}
		next.Stop()
	}
}

// maxPause is the longest pause before what is away at the start is tried again.
const maxPause = 5 * time.Second

// whileStarting is err, or nothing if relay was told to stop meanwhile: then what it was about to do has not failed.
func whileStarting(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil
	}
	return err
}

// startServer runs the embedded server when no URL is configured.
func (s *service) startServer(ctx context.Context) error {
	if len(s.cfg.NATS.URL) > 0 {
		return nil
	}
	e := s.cfg.NATS.Embedded
	srv, err := natsd.Start(ctx, natsd.Config{
		Listen: e.Listen, StoreDir: e.StoreDir, Sync: e.Sync, Monitor: e.Monitor, Logger: s.serverLog(), AnyPortIfTaken: s.demo != "",
	})
	if errors.Is(err, natsd.ErrPortTaken) && strings.HasPrefix(err.Error(), "nats.embedded.listen") {
		return fmt.Errorf("%w; set nats.embedded.listen, or nats.url to use the server that is there", err)
	}
	if err != nil {
		return err
	}
	s.natsd = srv
	s.log.Info("embedded nats-server is up", "url", cli.Or(srv.ClientURL(), "in this process only"), "store", e.StoreDir, "sync", e.Sync)
	return nil
}

// serverLog leaves out what the server says of itself in a demo, where the messages are to be seen.
func (s *service) serverLog() *slog.Logger {
	if s.demo == "" {
		return s.log
	}
	return slog.New(warnings{s.log.Handler()})
}

// warnings is a handler of warnings and errors only.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// startAdmin begins to serve health and metrics, for this host and, if so configured, for others; it returns how to end it.
func (s *service) startAdmin(ctx context.Context) (stop func(), err error) {
	var done sync.WaitGroup
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.console != nil {
			s.console.Close()
		}
		for _, l := range s.listeners() {
			_ = l.Shutdown(ctx)
		}
		done.Wait()
	}
	main := admin.Config{Key: "admin.listen", Listen: s.cfg.Admin.Listen, AnyPortIfTaken: s.demo != ""}
	if s.cfg.Admin.Listen != "" && s.cfg.Admin.UI != config.UIOff {
		s.console = console.New(console.Config{
			Service: s.cfg.Service, Most: console.Role(s.cfg.Admin.UI), ShowBodies: s.cfg.Admin.ShowBodies, Logger: s.log,
		})
		main.Console = s.console
	}
	for _, cfg := range []admin.Config{
		main,
		{Key: "admin.probes", Listen: s.cfg.Admin.Probes, Anywhere: true},
	} {
		if cfg.Listen == "" {
			continue
		}
		cfg.Ready, cfg.Logger, cfg.Collectors = s.ready, s.log, []prometheus.Collector{s}
		l, err := admin.Listen(cfg)
		if err != nil {
			stop()
			return nil, err
		}
		if cfg.Console != nil {
			s.consoleAddr = l.Addr()
		}
		s.log.Info("admin is up", "key", cfg.Key, "url", "http://"+l.Addr()+"/readyz")
		s.mu.Lock()
		s.admins = append(s.admins, l)
		s.mu.Unlock()
		done.Go(func() { l.Serve(context.WithoutCancel(ctx)) })
	}
	return stop, nil
}

// listeners are those of health and metrics.
func (s *service) listeners() []*admin.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.admins)
}

func (s *service) newRelay(ctx context.Context) error {
	js, err := cli.NewJetStream(s.conn.Conn, s.cfg)
	if err != nil {
		return err
	}
	if err := s.patiently(ctx, "streams", func() error { return s.makeStreams(ctx, js) }); err != nil {
		return err
	}
	list, err := makeRoutes(s.cfg, s.conn.Conn, js, s.log, func(string) bool { return true })
	if err != nil {
		return err
	}
	c := consumerConfig(s.cfg, s.log)
	c.Adopt = s.adopt
	c.Troubles = s.laterTroubles
	r, err := consumer.New(s.conn.Conn, c, list...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.relay, s.starting = r, nil
	s.later = schedule.New(js, schedule.Config{
		Service: s.cfg.Service, Instance: r.Instance(), Replicas: s.cfg.NATS.Replicas, Schedules: s.cfg.Schedules, Logger: s.log,
		Later: schedule.Limits{MaxBytes: int64(s.cfg.Later.MaxBytes), MaxMsgs: int64(s.cfg.Later.MaxMsgs), MaxAge: s.cfg.Later.MaxAge},
		Own:   s.cfg.OwnSubjects(),
	})
	s.mu.Unlock()
	return nil
}

// laterTroubles is what does not work of schedules and delayed messages.
func (s *service) laterTroubles() []string {
	s.mu.Lock()
	later := s.later
	s.mu.Unlock()
	if later == nil {
		return nil
	}
	return later.Troubles()
}

// showConsole gives the console what it shows. It returns how to end that.
func (s *service) showConsole() (stop func(), err error) {
	if s.console == nil {
		return func() {}, nil
	}
	js, err := cli.NewJetStream(s.conn.Conn, s.cfg)
	if err != nil {
		return nil, err
	}
	behind, stopBehind := s.behind(&cli.Client{Config: s.cfg, Conn: s.conn, JS: js}, s.reload.running.Load, s.log)
	s.console.Show(behind)
	stopCodes, err := s.answerCodes(s.relay.Instance())
	if err != nil {
		stopBehind()
		return nil, err
	}
	return func() {
		stopCodes()
		stopBehind()
	}, nil
}

func (s *service) makeStreams(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, streamsTimeout)
	defer cancel()
	ctx, stop := permission.Watch(ctx, s.conn.Conn)
	defer stop()
	err := consumer.CheckJetStream(ctx, js)
	if err == nil {
		err = ensureStreams(ctx, js, s.cfg.Streams, s.stockClient(), s.log)
	}
	if cause := permission.Cause(ctx, err); cause != err {
		return cli.CannotStart(fmt.Errorf("streams: %w", cause))
	}
	return err
}

// stockClient is how the nats command is called for the embedded server; "nats" with another one.
func (s *service) stockClient() string {
	if s.natsd == nil {
		return "nats"
	}
	e := s.cfg.NATS.Embedded
	return "nats --server " + cli.Or(s.natsd.ClientURL(), "(set nats.embedded.listen)") + " --nkey " + natsd.KeyFile(e.StoreDir)
}

func consumerConfig(cfg *config.Config, log *slog.Logger) consumer.Config {
	c := consumer.Config{
		Events: cfg.Events, Archive: cfg.Archive, Parked: cfg.Parked, Service: cfg.Service, Domain: cfg.NATS.Domain, Replicas: cfg.NATS.Replicas, Fleet: cfg.Fleet, Drain: cfg.Drain, Limits: cfg.Limits, Stalled: cfg.Ready.Stalled, Logger: log,
	}
	c.DLQ.MaxAge, c.DLQ.MaxBytes, c.DLQ.MaxMsgs, c.DLQ.OnFull = cfg.DLQ.MaxAge, int64(cfg.DLQ.MaxBytes), int64(cfg.DLQ.MaxMsgs), cfg.DLQ.OnFull
	return c
}

// ready is what /readyz says.
func (s *service) ready() error {
	s.mu.Lock()
	r, later, starting := s.relay, s.later, s.starting
	s.mu.Unlock()
	if starting != nil {
		return starting
	}
	errs := []error{r.Ready(), later.Ready(), s.conn.Ready()}
	for _, l := range s.listeners() {
		errs = append(errs, l.Down())
	}
	if s.natsd != nil {
		errs = append(errs, s.natsd.Healthz())
	}
	return errors.Join(errs...)
}

// Describe and Collect make the service a prometheus.Collector from the start, before there is a relay.
func (s *service) Describe(chan<- *prometheus.Desc) {}

// Collect passes on the relay's metrics.
func (s *service) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	r, later := s.relay, s.later
	s.mu.Unlock()
	if r != nil {
		r.Collector().Collect(ch)
		later.Collector().Collect(ch)
	}
	s.reload.collect(ch)
}

// watch ends the service when its embedded server has ended; a connection that was closed for good ends the relay itself.
func (s *service) watch(ctx context.Context, end context.CancelCauseFunc) {
	if s.natsd == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.natsd.Done():
		end(fmt.Errorf("the embedded nats-server ended: %w", s.natsd.Err()))
	}
}

// onSignals drains at the first signal and exits at the second. It returns how to stop listening.
func (s *service) onSignals(end context.CancelCauseFunc, out *logging.Writer) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if sig, ok := <-signals; ok {
			s.notify.stopping()
			s.log.Info("draining; a second signal exits at once", "signal", sig.String(), "drain", s.reload.running.Load().Drain)
			end(context.Canceled)
		}
		if _, ok := <-signals; ok {
			s.log.Warn("exiting at once; unfinished messages are delivered again")
			_ = out.Close()
			os.Exit(cli.ExitForced)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
