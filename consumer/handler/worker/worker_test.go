package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// long is the bound of what should come at once.
const long = 30 * time.Second

func newHandler(t *testing.T, cfg Config) *Handler { return logging(t, cfg, quiet()) }

func logging(t *testing.T, cfg Config, log *slog.Logger) *Handler {
	t.Helper()
	h, err := New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, h) })
	return h
}

func stop(t *testing.T, h *Handler) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if err := h.Stop(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("stop: %v, %v", err, ctx.Err())
	}
}

var serial struct {
	sync.Mutex
	n int
}

// message has an id of its own, and tells the puppet what to do.
func message(acts ...string) *consumer.Msg {
	serial.Lock()
	defer serial.Unlock()
	serial.n++
	m := handlertest.Message("orders.eu.created", []byte(strings.Join(acts, ";")))
	m.ID = fmt.Sprintf("ORDERS~billing~%d~1", serial.n)
	return m
}

// alive is a pipe that the processes of a config hold as long as they live.
type alive struct{ file *os.File }

func watch(t *testing.T, cfg *Config) *alive {
	t.Helper()
	path := filepath.Join(cfg.Dir, "up")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	cfg.Env["WORKER_UP"] = path
	return &alive{f}
}

// gone waits until no process holds the pipe. At least one must have begun.
func (a *alive) gone(t *testing.T) {
	t.Helper()
	_ = a.file.SetReadDeadline(time.Now().Add(long))
	if _, err := io.ReadAll(a.file); err != nil {
		t.Errorf("a process still lives: %v", err)
	}
}

func TestHandle_verdicts(t *testing.T) {
	h := newHandler(t, config(t, ""))
	for line, want := range map[string]struct {
		verdict supervise.Verdict
		text    string
	}{
		`{"id":"ID","verdict":"ack"}`:                                                                                {handlertest.Ack, ""},
		`{"id":"ID","verdict":"ack","more":[1,{"x":2}]}`:                                                             {handlertest.Ack, ""},
		`{"id":"ID","verdict":"retry","error":"db is down"}`:                                                         {handlertest.Retry, "db is down"},
		`{"id":"ID","verdict":"retry"}`:                                                                              {handlertest.Retry, "the worker gave no reason"},
		`{"id":"ID","verdict":"retry","error":"x","delay":"90s"}`:                                                    {supervise.Verdict{Kind: supervise.Retry, Delay: 90 * time.Second}, "x"},
		`{"id":"ID","verdict":"retry","error":"x","delay":1.5}`:                                                      {supervise.Verdict{Kind: supervise.Retry, Delay: 1500 * time.Millisecond}, "x"},
		`{"id":"ID","verdict":"snooze","delay":"1m"}`:                                                                {supervise.Verdict{Kind: supervise.Snooze, Delay: time.Minute}, ""},
		`{"id":"ID","verdict":"dead","error":"no such customer"}`:                                                    {handlertest.Dead, "no such customer"},
		`{"id":"ID","verdict":"drop","error":"nobody wants it"}`:                                                     {supervise.Verdict{Kind: supervise.Drop}, "nobody wants it"},
		" {\"verdict\":\"dead\",\"error\":\"a\\u001b[31mb\\n\",\"id\":\"ID\"} \r":                                    {handlertest.Dead, "b"},
		"{\"id\":\"ID\",\"progress\":\"half\"}\n\n{\"id\":\"ID\",\"verdict\":\"dead\",\"error\":\"after progress\"}": {handlertest.Dead, "after progress"},
	} {
		if !handlertest.Want(t, h.Handle(t.Context(), message(say(line))), want.verdict, want.text) {
			t.Errorf("%s", line)
		}
	}
	if n := len(h.children); n != 1 {
		t.Errorf("%d processes; one should have answered all", n)
	}
}

// What a worker does wrong ends its process, with what it wrote in the error; the next message gets a fresh one.
func TestHandle_wrongAnswers(t *testing.T) {
	cfg := config(t, "")
	up := watch(t, &cfg)
	h := newHandler(t, cfg)
	for name, tc := range map[string]struct{ act, text string }{
		"garbage":           {say("Traceback (most recent call last):"), `not an answer (invalid character 'T' looking for beginning of value): "Traceback (most recent call last):"`},
		"control bytes":     {say("\x1b[31m\x00"), "not an answer"},
		"no object":         {say("[]"), "not an answer"},
		"nothing said":      {say(`{"id":"ID"}`), "neither a verdict nor progress"},
		"no such verdict":   {say(`{"id":"ID","verdict":"ok"}`), `"ok" is not a verdict`},
		"no delay":          {say(`{"id":"ID","verdict":"retry","delay":"soon"}`), `"soon" is not a delay`},
		"negative delay":    {say(`{"id":"ID","verdict":"retry","delay":-1}`), `-1 is not a delay`},
		"no base64":         {say(`{"id":"ID","verdict":"ack","result_base64":"%"}`), "illegal base64"},
		"for a stranger":    {say(`{"id":"somebody","verdict":"ack"}`), `answered for the id "somebody", which it was not given, or has answered before`},
		"for nobody":        {say(`{"verdict":"ack"}`), `answered for the id ""`},
		"deep":              {say(strings.Repeat("[", 20_000)), "exceeded max depth"},
		"closes its stdout": {"close-stdout;hang", "closed its stdout"},
		"exits":             {"exit:3", "exit status 3: leaving with 3"},
		"exits with 0":      {"exit:0", "exit status 0"},
		"is killed":         {"kill", "killed by signal 9"},
	} {
		t.Run(name, func(t *testing.T) {
			handlertest.Want(t, h.Handle(t.Context(), message(tc.act)), handlertest.Crashed, cfg.Command[0]+": ", tc.text)
		})
	}
	handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
	stop(t, h)
	up.gone(t)
}

// The second answer comes when the message has its verdict. It must not become the fault of the next message.
func TestHandle_answersTwice(t *testing.T) {
	h := newHandler(t, config(t, ""))
	twice := `{"id":"ID","verdict":"ack"}` + "\n" + `{"id":"ID","verdict":"ack"}`
	for range 5 {
		handlertest.Want(t, h.Handle(t.Context(), message(say(twice))), handlertest.Ack)
	}
	handlertest.Want(t, h.Handle(t.Context(), message(say(`{"id":"ID","progress":"x"}`), say(`{"id":"ID","verdict":"ack"}`))), handlertest.Ack)
}

// One that exits after each answer, as workers do that bound their memory so, costs no message an attempt.
func TestHandle_exitsAfterItsAnswer(t *testing.T) {
	for _, inFlight := range []int{1, 3} {
		cfg := config(t, "")
		cfg.InFlight, cfg.Processes = inFlight, 2
		h := newHandler(t, cfg)
		var all sync.WaitGroup
		for range 2 * inFlight {
			all.Go(func() {
				for range 2 {
					for {
						err := h.Handle(t.Context(), message("ack", "exit:0"))
						if err == nil {
							break
						}
						// Those that it had read and not answered are suspects, and run alone next.
						if inFlight == 1 || handlertest.Verdict(err).Kind != supervise.Snooze && !handlertest.Verdict(err).Crashed {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		all.Wait()
	}
}

func TestHandle_lineWithoutEnd(t *testing.T) {
	cfg := config(t, "")
	h := newHandler(t, cfg)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	handlertest.Want(t, h.Handle(t.Context(), message("endless")), handlertest.Crashed, "wrote a line of more than 1638400 bytes")
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes were allocated for a line of 100 MiB", grown)
	}
	handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
}

func TestHandle_timeout(t *testing.T) {
	for name, tc := range map[string]struct {
		begin, act string
		size       int
		want       string
	}{
		"never answers":        {"", "hang", 0, "did not answer within 50ms after its message was cancelled, so relay killed it"},
		"never reads":          {"hang", "", 0, "did not answer within 50ms"},
		"never reads, is full": {"hang", "", 1 << 20, "did not read its stdin, so relay killed it"},
		"ignores SIGTERM":      {"ignore-term", "hang", 0, "did not answer"},
		"forks":                {"fork", "hang", 0, "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, tc.begin)
			cfg.Grace = 50 * time.Millisecond
			up := watch(t, &cfg)
			h := newHandler(t, cfg)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				inHand(t, h, 1)
				cancel(fmt.Errorf("%w of the route", context.DeadlineExceeded))
			}()
			m := message(tc.act)
			if tc.size > 0 {
				m.Data = bytes.Repeat([]byte("x"), tc.size)
			}
			err := h.Handle(ctx, m)
			handlertest.Want(t, err, handlertest.Retry, tc.want, "context deadline exceeded of the route")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is not the cause of the context", err)
			}
			stop(t, h)
			up.gone(t)
		})
	}
}

// inHand waits until the first process was given as many messages, as far as they fit into the pipe.
func inHand(t *testing.T, h *Handler, n int) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		sl := h.places.shared[0]
		sl.mu.Lock()
		c := sl.child
		sl.mu.Unlock()
		if c == nil {
			continue
		}
		c.mu.Lock()
		has := len(c.calls) == n && (c.writer == nil || unread(c.process.In) > 0)
		c.mu.Unlock()
		if has {
			return
		}
	}
	t.Errorf("the process has not got %d messages", n)
}

// A worker that heeds a cancel keeps its process, and what it says counts.
func TestHandle_cancel(t *testing.T) {
	for verdict, want := range map[string]supervise.Verdict{"retry": handlertest.Retry, "ack": handlertest.Ack} {
		cfg := config(t, "")
		cfg.Env["WORKER_HEEDS_CANCEL"] = verdict
		h := newHandler(t, cfg)
		h.cfg.Grace = long // a process may take its time to begin
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { inHand(t, h, 1); cancel(errors.New("nobody wants it")) }()
		err := h.Handle(ctx, message("say:"))
		if handlertest.Want(t, err, want) && err != nil && !strings.Contains(err.Error(), "nobody wants it") {
			t.Error(err)
		}
		c := h.places.shared[0].child
		handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
		if h.places.shared[0].child != c {
			t.Error("the process was not used again")
		}
	}
}

func TestHandle_ctxEndedBefore(t *testing.T) {
	h := newHandler(t, config(t, ""))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	handlertest.Want(t, h.Handle(ctx, message("ack")), handlertest.NotStarted, "context canceled")
	if len(h.children) > 0 {
		t.Error("a process was started")
	}
}

func TestHandle_noProcessIsFree(t *testing.T) {
	h := newHandler(t, config(t, ""))
	ctx, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	hanging.Go(func() { _ = h.Handle(ctx, message("hang")) })
	inHand(t, h, 1)
	waiting, end := context.WithCancel(t.Context())
	go end()
	handlertest.Want(t, h.Handle(waiting, message("ack")), handlertest.NotStarted, "no process was free")
	cancel()
	hanging.Wait()
}

func TestHandle_ready(t *testing.T) {
	for name, tc := range map[string]struct{ begin, text string }{
		"dies while starting": {"exit:7", "exit status 7: leaving with 7"},
		"says nothing":        {"hang", "did not say within 20ms that it is ready"},
		"says something else": {say("hello"), `did not begin with {"ready":true}: "hello"`},
		"too much":            {"endless", "did not begin with"},
		"closes its stdout":   {"close-stdout hang", "closed its stdout"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, tc.begin)
			cfg.Ready = true
			if name == "says nothing" {
				cfg.StartTimeout = 20 * time.Millisecond
			}
			up := watch(t, &cfg)
			h := newHandler(t, cfg)
			for range 2 {
				handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.NotStarted, tc.text)
			}
			// As if the first had been that long ago.
			h.starts.Succeeded()
			_ = h.starts.Failed(fmt.Errorf("start: %w", syscall.ENOENT), time.Now().Add(-time.Minute))
			handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.FailRoute, tc.text)
			stop(t, h)
			up.gone(t)
		})
	}
	t.Run("in time", func(t *testing.T) {
		cfg := config(t, "ready")
		cfg.Ready = true
		h := newHandler(t, cfg)
		_ = h.starts.Failed(fmt.Errorf("start: %w", syscall.ENOENT), time.Now().Add(-time.Minute))
		handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
	})
	// Without ready, one that dies before it has read anything has started no message either.
	t.Run("not configured", func(t *testing.T) {
		h := newHandler(t, config(t, "exit:7"))
		for range 3 {
			handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.NotStarted, "exit status 7: leaving with 7")
		}
	})
	t.Run("not configured, and said", func(t *testing.T) {
		h := newHandler(t, config(t, "ready"))
		handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
	})
}

// A program that is gone spends nothing, and stops the route when that lasts.
func TestHandle_programIsGone(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, Config{Command: []string{program}})
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	os.Remove(program)
	handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.NotStarted, "start "+program)
	if err := h.Check(t.Context()); err == nil {
		t.Error("nothing is wrong with a program that is not there")
	}
}

func TestStop_ignoresEverything(t *testing.T) {
	for name, act := range map[string]string{
		"leaves":                 "ack",
		"ignores SIGTERM, hangs": "ignore-term;ack;hang",
		"has forked":             "fork;ack",
		"forked, hangs":          "fork;ignore-term;ack;hang",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, "")
			cfg.Grace = 20 * time.Millisecond
			up := watch(t, &cfg)
			h := newHandler(t, cfg)
			handlertest.Want(t, h.Handle(t.Context(), message(act)), handlertest.Ack)
			stop(t, h)
			up.gone(t)
		})
	}
}

// A crash with one message in hand is that message's; with several, nobody knows, and each runs alone next.
func TestHandle_crashBesideOthers(t *testing.T) {
	cfg := config(t, "")
	cfg.InFlight = 8
	h := newHandler(t, cfg)
	poison := message("exit:1")
	left := make(chan *consumer.Msg, 8)
	var all sync.WaitGroup
	for i := range 8 {
		m := poison
		if i > 0 {
			m = message("sleep:5ms", "ack")
		}
		all.Go(func() {
			switch v := handlertest.Verdict(h.Handle(t.Context(), m)); {
			case v.Kind == supervise.Snooze:
				left <- m
			case v.Crashed && m == poison: // the others had all been answered, or were not read
				left <- m
			case v.Kind != supervise.Ack:
				t.Errorf("%s: %+v", m.Data, v)
			}
		})
	}
	all.Wait()
	close(left)
	for m := range left {
		for range 3 {
			all.Go(func() { handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack) })
		}
		want := handlertest.Ack
		if m == poison {
			want = handlertest.Crashed
		}
		handlertest.Want(t, h.Handle(t.Context(), m), want)
		all.Wait()
	}
	if h.suspects.class(poison.ID) != tried || h.suspects.n.Load() != 1 {
		t.Errorf("%d suspects", h.suspects.n.Load())
	}
}

// A message that hangs costs those beside it a restart, and no attempt.
func TestHandle_hangsBesideOthers(t *testing.T) {
	cfg := config(t, "")
	cfg.InFlight, cfg.Grace = 2, 20*time.Millisecond
	h := newHandler(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { handlertest.Want(t, h.Handle(ctx, message("hang")), handlertest.Retry, "context canceled") })
	inHand(t, h, 1)
	all.Go(func() {
		// It is given to the next process when the first had not read it.
		err := h.Handle(t.Context(), message("ack"))
		if v := handlertest.Verdict(err); v.Kind != supervise.Snooze && v.Kind != supervise.Ack && !v.NotStarted {
			t.Error(err)
		}
	})
	cancel()
	all.Wait()
}

func TestHandle_concurrent(t *testing.T) {
	for _, inFlight := range []int{1, 8} {
		cfg := config(t, "")
		cfg.Processes, cfg.InFlight = 3, inFlight
		h := newHandler(t, cfg)
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				for j := range 50 {
					text := fmt.Sprintf("%d-%d", i, j)
					err := h.Handle(t.Context(), message(say(`{"id":"ID","verdict":"dead","error":"`+text+`"}`)))
					if err == nil || err.Error() != text {
						t.Errorf("%v, want %s", err, text)
					}
				}
			})
		}
		all.Wait()
		if n := len(h.children); n != 3 {
			t.Errorf("%d processes", n)
		}
	}
}

// What a process writes to stderr is logged without what terminals obey, and bounded.
func TestHandle_stderr(t *testing.T) {
	var log bytes.Buffer
	h := logging(t, config(t, ""), slog.New(slog.NewTextHandler(&log, nil)))
	handlertest.Want(t, h.Handle(t.Context(), message("stderr:100000", "ack")), handlertest.Ack)
	stop(t, h)
	text := log.String()
	if n := strings.Count(text, "of many"); n != maxLines || !strings.Contains(text, `msg="worker: line 0 [31m of many"`) || !strings.Contains(text, "lines=99900") {
		t.Errorf("%d lines: %.2000s", n, text)
	}
}

// Node.js writes "Error: boom" first and its stack after it: the error of a message had the end of the stack only. What was written at the
// start, or of messages before, is none of it.
func TestHandle_regressionTheHeadOfStderrWasCutOff(t *testing.T) {
	log := &until{text: "line 49 ", seen: make(chan struct{})}
	h := logging(t, config(t, ""), slog.New(slog.NewTextHandler(log, nil)))
	handlertest.Want(t, h.Handle(t.Context(), message("stderr:50", "ack")), handlertest.Ack)
	<-log.seen // else it may be read after the next message has begun
	err := h.Handle(t.Context(), message("boom:17"))
	text := fmt.Sprint(err)
	_, said, _ := strings.Cut(text, "exit status 1: ")
	if !strings.HasPrefix(said, "/app/worker.js:17 throw new Error('boom') ^ Error: boom at Module.step0 ") ||
		!strings.HasSuffix(said, "at Module.step59 (node:internal/modules/cjs/loader:1059:14) Node.js v22.11.0") ||
		strings.Count(said, " … ") != 1 || strings.Contains(said, "of many") || len(text) > retry.MaxErrorLen {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

// until is a log that waits for a text.
type until struct {
	text string
	seen chan struct{}
	once sync.Once
}

func (u *until) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(u.text)) {
		u.once.Do(func() { close(u.seen) })
	}
	return len(b), nil
}

// The environment is made from nothing, as for exec.
func TestHandle_environment(t *testing.T) {
	t.Setenv("RELAY_NATS__PASSWORD", "canary")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary")
	h := newHandler(t, config(t, ""))
	if err := h.Handle(t.Context(), message("env")); strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "WORKER_TEST=") {
		t.Error(err)
	}
}

func TestNewKeys(t *testing.T) {
	cfg := config(t, "")
	cfg.Processes, cfg.Per = 0, PerKey
	keys, err := NewKeys(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for _, key := range []string{"a", "b"} {
		h, err := keys.New(key)
		if err != nil {
			t.Fatal(err)
		}
		handlertest.Want(t, h.Handle(t.Context(), message("ack")), handlertest.Ack)
		pids[h.(*Handler).places.shared[0].child.process.Pid()] = true
		t.Cleanup(func() { stop(t, h.(*Handler)) })
	}
	if len(pids) != 2 {
		t.Errorf("processes %v", pids)
	}
	if _, err := New(cfg, quiet()); err == nil || err.Error() != "per: must be pool for this kind of handler (got key)" {
		t.Error(err)
	}
}

func TestConfig_faults(t *testing.T) {
	ok := func(c Config) Config { c.Command = []string{"x"}; return c }
	for want, cfg := range map[string]Config{
		"command: is required":         {},
		"per: must be pool or key":     ok(Config{Per: "message"}),
		"processes: must be 1 to":      ok(Config{Processes: -1}),
		"processes: is for per: pool":  ok(Config{Processes: 2, Per: PerKey}),
		"in_flight: must be 1 to":      ok(Config{InFlight: 5000}),
		"start_timeout: must be above": ok(Config{StartTimeout: -1}),
		"grace: must be above 0 and":   ok(Config{Grace: time.Second}),
		"max_result: must be above":    ok(Config{MaxResult: 1 << 40}),
		"limits.files: must be":        ok(Config{Limits: Limits{Files: 1}}),
	} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := ok(Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestHandle_result(t *testing.T) {
	h := newHandler(t, config(t, ""))
	for answer, want := range map[string]string{
		`"result":"caf\u00e9\n"`: "café\n", `"result_base64":"AP8="`: "\x00\xff", `"result":{"a":[1, 2]}`: `{"a":[1, 2]}`, `"result":""`: "",
		`"result":null`: "", `"error":""`: "", `"result":"123456789012345678"`: "1234567890123456",
	} {
		m := message(say(`{"id":"ID","verdict":"ack",` + answer + `}`))
		r := consumer.RecordReply(m, 16)
		handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Ack)
		if got, cut := r.Data(); string(got) != want || cut != (len(want) == 16) {
			t.Errorf("%s: %q, cut %v", answer, got, cut)
		}
	}
}
