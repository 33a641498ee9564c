package program

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

// fill stores n dead letters of the route billing, on as many subjects as subjects says.
func fill(t testing.TB, js jetstream.JetStream, n, subjects int) *dlq.Store {
	t.Helper()
	store, err := dlq.Open(t.Context(), js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	next := make(chan int, 1000)
	var work sync.WaitGroup
	at := time.Now().Add(-time.Hour)
	for range 32 {
		work.Go(func() {
			for i := range next {
				e := dlq.Entry{
					Origin: retry.Origin{
						Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: uint64(i + 1), Time: at.Add(time.Duration(i)),
						Subject: fmt.Sprintf("orders.%d.created", i%subjects), Attempts: 1 + i%20, Deliveries: 20,
						FirstFailure: at, LastFailure: at.Add(time.Minute),
						LastError: fmt.Sprintf("POST http://10.0.0.%d:9000/hook: 503 Service Unavailable: upstream %d", i%250, i),
					},
					Header: nats.Header{"Trace-Id": {fmt.Sprint(i)}, "Content-Type": {"application/json"}},
					Data:   fmt.Appendf(nil, `{"n":%d,"customer":{"id":%d},"total":%d.5}`, i, i%1000, i%500),
					Reason: dlq.Exhausted, Instance: "host-1",
				}
				if i%10 == 0 {
					e.Reason = dlq.Rejected
				}
				if err := store.Put(t.Context(), "", e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	work.Wait()
	return store
}

// jobID finds the id in what relay dlq replay said.
func jobID(t testing.TB, out string) string {
	t.Helper()
	_, after, _ := strings.Cut(out, "\njob ")
	id, _, ok := strings.Cut(after, "\n")
	if !ok {
		t.Fatalf("no job in %q", out)
	}
	return id
}

// forwarding are routes that hand each message on to a stream, where all of them can be counted.
const forwarding = `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    ack_wait: 3s
    handler: {forward: {subject: done.orders}}
  - name: live
    subjects: [live.>]
    start: all
    handler: {forward: {subject: lived.all}}
`

func left(t testing.TB, js jetstream.JetStream, stream string) int {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return int(s.CachedInfo().State.Msgs)
}

// replays is a replay of many dead letters, with a relay at work.
type replays struct {
	n, subjects int
	rate        float64
	// How often the command and the relay are killed at random moments. The command is resumed, the relay started again.
	killCommand, killRelay int
	rnd                    *rand.Rand
	// during is called once while the replay runs, and the replay is waited for. It may be nil.
	during func(w *world, running func() bool)
}

// newReplays is a world with n dead letters of the route billing.
func newReplays(t *testing.T) *world {
	w := newWorld(t, forwarding)
	for _, cfg := range []jetstream.StreamConfig{
		// Relay's forwarding has a message id, which would hide that a message was handled twice.
		{Name: "DONE", Subjects: []string{"done.>"}, Duplicates: 100 * time.Millisecond},
		{Name: "LIVE", Subjects: []string{"live.>"}},
		{Name: "LIVED", Subjects: []string{"lived.>"}},
	} {
		if _, err := w.js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// do makes sure that each message was handed over and handled exactly once and reached nobody else. It returns the time from the
// creation of the job to its end.
func (r replays) do(t *testing.T, w *world) time.Duration {
	if r.killRelay > 0 { // what was handled but not acknowledged at a kill is handled again: at least once
		done, err := w.js.Stream(t.Context(), "DONE")
		if err != nil {
			t.Fatal(err)
		}
		cfg := done.CachedInfo().Config
		cfg.Duplicates = 5 * time.Minute
		if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	service := w.run()
	other, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "other"})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, w.js, r.n, r.subjects)
	// Of what there is, how much is left at each kill: a third at least, for on a busy machine the rest of a job is over before the kill. Two of them may
	// come close to each other: then the second one hits the start of the command, its plan, or its wait for the silence of the one before.
	var at []int
	for range r.killCommand {
		at = append(at, r.n/3+r.rnd.IntN(r.n*6/10))
	}
	slices.Sort(at)
	slices.Reverse(at)
	args := []string{"dlq", "replay", "--yes", "--rate", fmt.Sprint(r.rate)}
	id, killed := "", 0
	began := time.Now()
	for _, target := range at {
		p := spawn(t, w.dir, nil, args...)
		natstest.Eventually(t, "it is at work", func() bool {
			select {
			case <-p.exited:
				t.Fatalf("relay %v ended by itself: %s%s", p.args, p.out.String(), p.err.String())
			default:
			}
			return (id != "" || strings.Contains(p.out.String(), "job ")) && left(t, w.js, "RELAY_DLQ") <= target
		})
		if id == "" {
			id = jobID(t, "\n"+p.out.String())
		}
		p.kill()
		if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
			t.Fatalf("relay %v was not killed: %v", p.args, p.cmd.ProcessState)
		}
		killed++
		args = []string{"replay", "resume", id, "--yes"}
	}
	if killed != r.killCommand {
		t.Fatalf("the command was killed %d times, want %d", killed, r.killCommand)
	}
	p := spawn(t, w.dir, strings.NewReader(""), args...)
	running := func() bool {
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	if r.during != nil {
		r.during(w, running)
	}
	for killed = 0; killed < r.killRelay; killed++ {
		natstest.Eventually(t, "the job is at work", func() bool { return !running() || left(t, w.js, "RELAY_DLQ") < r.n })
		time.Sleep(time.Duration(r.rnd.Int64N(int64(1500 * time.Millisecond))))
		if !running() {
			t.Fatalf("the job was over after %d kills of relay", killed)
		}
		service.kill()
		service = w.run()
	}
	if code := p.wait(); code != 0 {
		t.Fatalf("relay %v: exit %d\n%s%s", args, code, p.out.String(), p.err.String())
	}
	whole := time.Since(began)
	if id == "" {
		id = jobID(t, p.out.String())
	}
	natstest.Eventually(t, "all are handled", func() bool { return left(t, w.js, "DONE") >= r.n })
	settled(t, w.js, "RELAY_RETRY", "billing--ORDERS")
	if got := left(t, w.js, "DONE"); got != r.n {
		t.Errorf("%d messages handled, want %d", got, r.n)
	}
	if got := left(t, w.js, "RELAY_DLQ"); got != 0 {
		t.Errorf("%d dead letters are left", got)
	}
	retry, err := w.js.Stream(t.Context(), "RELAY_RETRY")
	if err != nil {
		t.Fatal(err)
	}
	if got := retry.CachedInfo().State.LastSeq; got != uint64(r.n) {
		t.Errorf("%d hand-overs were stored, want %d", got, r.n)
	}
	if info, err := other.Info(t.Context()); err != nil || info.NumPending != 0 || info.Delivered.Consumer != 0 {
		t.Errorf("another durable sees %d messages, %v", info.NumPending, err)
	}
	var job dlq.Job
	if err := json.Unmarshal([]byte(must(t, w.dir, "replay", "show", id, "--json")), &job); err != nil || job.State != dlq.JobDone || job.Handed != r.n {
		t.Errorf("job %+v, %v", job, err)
	}
	state := p.cmd.ProcessState
	t.Logf("%v with process starts and plans; CPU of the command %v", whole.Round(time.Millisecond), (state.UserTime() + state.SystemTime()).Round(time.Millisecond))
	return job.Updated.Sub(job.Created)
}

// I-19, scaled down; the full figures are under the build tag chaos.
func TestReplay_killedAndResumed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	replays{n: 1500, subjects: 100, rate: 1000, killCommand: 2, rnd: rand.New(rand.NewPCG(seed, 0))}.do(t, newReplays(t))
}

func TestReplay_relayKilled(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	replays{n: 1500, subjects: 100, rate: 300, killRelay: 1, rnd: rand.New(rand.NewPCG(seed, 0))}.do(t, newReplays(t))
}

// I-20: a replayed message that fails comes back as one entry with its history and a fresh budget.
func TestReplay_failsAgain(t *testing.T) {
	t.Parallel()
	// One key with failures only would trip, and its probes spend no attempts.
	w := newWorld(t, billing+"    supervisor: {trip_after: 0, route_trip: {of: 0}}\n")
	w.hook.answers(func(request) (int, string) { return 503, "down" })
	w.run()
	w.publish("orders.eu.created", []byte("{}"), nil)
	for replays := range 3 {
		natstest.Eventually(t, "dead letter", func() bool { l := deadLetters(t, w.js); return len(l) == 1 && l[0].Replay == replays })
		if replays == 2 {
			break
		}
		code, out, stderr := relay(t, w.dir, "dlq", "replay", "--yes", "--wait")
		if code != 0 || !strings.Contains(out, "1 replayed: 0 succeeded, 1 failed") {
			t.Fatalf("exit %d\n%s%s", code, out, stderr)
		}
	}
	e := deadLetters(t, w.js)[0]
	if e.Attempts != 2 || len(e.Past) != 2 || e.Past[0].Job != "" || e.Past[1].Job == "" || e.Past[1].Replay != 1 || e.Job == e.Past[1].Job {
		t.Errorf("entry %+v", e.Origin)
	}
	if n := w.hook.count(); n != 6 {
		t.Errorf("%d attempts, want 3 times 2", n)
	}
	show := must(t, w.dir, "dlq", "show", fmt.Sprint(e.StoredSequence))
	if strings.Count(show, "before ") != 2 || !strings.Contains(show, "replayed     2 times") {
		t.Errorf("show:\n%s", show)
	}
}

// A stage that fails stops the job; mended, it goes on from another machine.
func TestReplay_stagedStopsAndResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.hook.answers(func(request) (int, string) { return 422, "no" })
	w.run()
	fill(t, w.js, 40, 40)
	code, out, stderr := relay(t, w.dir, "dlq", "replay", "--staged", "--yes")
	if code != 1 || !strings.Contains(stderr, "relay: stopped: too many failures: 1 of 1") || !strings.Contains(out, "1 replayed: 0 succeeded, 1 failed") {
		t.Fatalf("exit %d\n%s%s", code, out, stderr)
	}
	id := jobID(t, out)
	w.hook.answers(nil)
	must(t, w.dir, "replay", "cancel", id)
	if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "cancelled  1") {
		t.Errorf("ls:\n%s", out)
	}
	if out := must(t, t.TempDir(), "replay", "resume", id, "--yes", "--server", w.s.URL()); !strings.Contains(out, "40 replayed: 39 succeeded, 1 failed") {
		t.Errorf("resume:\n%s", out)
	}
	if out := must(t, w.dir, "replay", "show", id); !strings.Contains(out, "422 Unprocessable Entity: no") || !strings.Contains(out, "state     done") {
		t.Errorf("show:\n%s", out)
	}
	if code, _, stderr := relay(t, w.dir, "replay", "resume", id); code != 1 || !strings.Contains(stderr, "is done") {
		t.Errorf("resume of what is done: %d %s", code, stderr)
	}
}

// Dead letters that stay, and that were stored after all that can be replayed, counted as gone when the job was resumed: "somebody else replayed or
// discarded them".
func TestReplay_regressionWhatStaysIsNotGoneAfterAResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.hook.answers(func(request) (int, string) { return 422, "no" })
	w.run()
	store := fill(t, w.js, 20, 20)
	other := dlq.Entry{
		Origin: retry.Origin{Route: "shipping", Stream: "ORDERS", Consumer: "shipping", Sequence: 100, Time: time.Now(), Subject: "orders.x"}, Reason: dlq.Rejected,
	}
	if err := store.Put(t.Context(), "", other); err != nil {
		t.Fatal(err)
	}
	code, out, _ := relay(t, w.dir, "dlq", "replay", "--staged", "--yes")
	if code != 1 || !strings.Contains(out, "1 stays, because") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	id := jobID(t, out)
	w.hook.answers(nil)
	code, out, stderr := relay(t, w.dir, "replay", "resume", id, "--yes")
	if code != 1 || !strings.Contains(out, "20 replayed: 19 succeeded, 1 failed\n") || strings.Contains(out, "gone") || !strings.Contains(stderr, "1 of 21 dead letters stay") {
		t.Errorf("resume: exit %d\n%s%s", code, out, stderr)
	}
	if out := must(t, w.dir, "replay", "show", id); !strings.Contains(out, "20, gone 0, stay 1, left 0") {
		t.Errorf("show:\n%s", out)
	}
}

// Ctrl-C stops a job between two messages.
func TestReplay_interrupted(t *testing.T) {
	t.Parallel()
	w := newReplays(t)
	w.run()
	fill(t, w.js, 1000, 10)
	p := spawn(t, w.dir, nil, "dlq", "replay", "--yes", "--rate", "100")
	natstest.Eventually(t, "it is at work", func() bool { return left(t, w.js, "RELAY_DLQ") < 990 })
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 1 || !strings.Contains(p.err.String(), "stopped: interrupted") {
		t.Fatalf("exit %d\n%s%s", code, p.out.String(), p.err.String())
	}
	must(t, w.dir, "replay", "resume", jobID(t, p.out.String()), "--rate", "0", "--yes")
	natstest.Eventually(t, "all are handled", func() bool { return left(t, w.js, "DONE") >= 1000 })
	settled(t, w.js, "RELAY_RETRY", "billing--ORDERS")
	if n := left(t, w.js, "DONE"); n != 1000 {
		t.Errorf("%d handled", n)
	}
}

// F96: no instance has the route any more.
func TestReplay_unknownRouteIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.ReplaceAll(billing, "billing", "shipping"))
	w.run()
	fill(t, w.js, 3, 3)
	code, out, stderr := relay(t, w.dir, "dlq", "replay", "--yes")
	if code != 1 || !strings.Contains(out, "3 stay, because\n  3: no running instance has a route billing") || !strings.Contains(stderr, "all 3 stay") {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}
	if n := left(t, w.js, "RELAY_DLQ"); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
}

// A subject that nothing can be replayed to is refused before a job is made, and not once for each dead letter.
func TestReplay_regressionSubjectOfRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.run()
	fill(t, w.js, 3, 3)
	code, out, stderr := relay(t, w.dir, "dlq", "replay", "--yes", "--to-subject", "relay.dlq.billing")
	if code != 1 || out != "" || !strings.Contains(stderr, `"relay.dlq.billing" lies in relay's own relay.dlq.>`) {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}
	if code, out, stderr := relay(t, w.dir, "replay", "ls"); code != 0 || strings.Contains(out, "running") || strings.Contains(out, "done") {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}
	if n := left(t, w.js, "RELAY_DLQ"); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
}

// The editor got a pipe for its output, so that vim said that this is no terminal. It gets what relay itself has, which is a file here.
func TestReplay_regressionEditorGetsTheTerminal(t *testing.T) {
	w := newWorld(t, billing)
	w.run()
	fill(t, w.js, 1, 1)
	script := filepath.Join(w.dir, "edit")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ -f /dev/fd/1 ] && echo '{}' > \"$1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(w.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	t.Setenv("EDITOR", script)
	t.Setenv("VISUAL", "")
	if code, stderr := relayInto(t, w.dir, out, "dlq", "replay", "1", "--edit", "--yes"); code != 0 {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestReplay_edit(t *testing.T) {
	w := newWorld(t, billing)
	w.run()
	w.hook.answers(func(r request) (int, string) {
		if strings.Contains(r.body, "Vienna") {
			return 200, ""
		}
		return 422, "no address"
	})
	w.publish("orders.eu.created", []byte(`{"address":null}`), nil)
	natstest.Eventually(t, "dead letter", func() bool { return len(deadLetters(t, w.js)) == 1 })
	script := filepath.Join(w.dir, "edit")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s' \"$BODY\" > \"$1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EDITOR", script)
	t.Setenv("VISUAL", "")
	edit := func(body string) string {
		t.Setenv("BODY", body)
		return must(t, w.dir, "dlq", "replay", fmt.Sprint(deadLetters(t, w.js)[0].StoredSequence), "--edit", "--wait", "--yes")
	}
	first := jobID(t, edit(`{"address":"Graz"}`))
	natstest.Eventually(t, "it failed again", func() bool { l := deadLetters(t, w.js); return len(l) == 1 && l[0].Replay == 1 })
	n := fmt.Sprint(deadLetters(t, w.js)[0].StoredSequence)
	if out := must(t, w.dir, "dlq", "show", n); !strings.Contains(out, "edited       by job "+first) || !strings.Contains(out, "Graz") {
		t.Errorf("show:\n%s", out)
	}
	if out := must(t, w.dir, "dlq", "show", n, "--original", "--raw"); out != `{"address":null}` {
		t.Errorf("original: %s", out)
	}
	if out := edit(`{"address":"Vienna"}`); !strings.Contains(out, "1 succeeded") {
		t.Errorf("second edit:\n%s", out)
	}
}

// A job is a record that others of the account may be able to write: what it would do is shown, and asked for.
func TestReplay_resumeShowsTheJobAndAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 5, 5)
	jobs, err := dlq.OpenJobs(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	forged := &dlq.Job{ID: "nightly", State: dlq.JobStopped, By: "mallory@laptop", Runner: "x", Created: time.Now(), Subject: "orders.elsewhere", Total: 5, Last: 5}
	if err := jobs.Create(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := relay(t, w.dir, "replay", "resume", "nightly")
	if code != 2 || !strings.Contains(out, "job nightly, begun by mallory@laptop on ") || !strings.Contains(out, "--to-subject orders.elsewhere") ||
		!strings.Contains(out, "5 dead letters") || !strings.Contains(out, "to orders.elsewhere") || !strings.Contains(stderr, "--yes is required") {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}
	if n := left(t, w.js, "RELAY_DLQ"); n != 5 {
		t.Errorf("%d entries are left of 5", n)
	}
}

// Records of a newer version are named and left alone, and those of an older one whose group means something else now.
func TestReplay_jobsOfOtherVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 3, 3)
	jobs, err := dlq.OpenJobs(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	_ = jobs
	kv, err := w.js.KeyValue(t.Context(), "RELAY_JOBS")
	if err != nil {
		t.Fatal(err)
	}
	const newer = `{"id":"newer","format":9,"state":"stopped","filter":{"every":true},"total":"many"}`
	for id, v := range map[string]string{"newer": newer, "older": `{"id":"older","state":"stopped","filter":{"fingerprint":"order <n> not found"},"total":3,"last":3}`} {
		if _, err := kv.PutString(t.Context(), id, v); err != nil {
			t.Fatal(err)
		}
	}
	if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "newer  -       of a newer version") {
		t.Errorf("ls:\n%s", out)
	}
	for _, args := range [][]string{{"show", "newer"}, {"cancel", "newer"}, {"resume", "newer", "--yes"}} {
		if code, _, stderr := relay(t, w.dir, append([]string{"replay"}, args...)...); code != 1 || !strings.Contains(stderr, "another version of relay") {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
	if e, err := kv.Get(t.Context(), "newer"); err != nil || string(e.Value()) != newer {
		t.Errorf("it was changed: %s, %v", e.Value(), err)
	}
	if code, _, stderr := relay(t, w.dir, "replay", "resume", "older", "--yes"); code != 1 || !strings.Contains(stderr, "begin a new job with --like") {
		t.Errorf("older: exit %d, %s", code, stderr)
	}
}

// A staged job that stopped because of failures began at one message again, and one that is bad for ever stopped it each time.
func TestReplay_stagedResumeIsNotStoppedByOneBadHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.hook.answers(func(request) (int, string) { return 422, "no" })
	w.run()
	fill(t, w.js, 60, 60)
	code, out, _ := relay(t, w.dir, "dlq", "replay", "--staged", "--yes")
	if code != 1 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	id := jobID(t, out)
	w.hook.answers(func(r request) (int, string) {
		if r.subject == "orders.1.created" { // the head of what is left
			return 422, "no"
		}
		return 200, ""
	})
	out = must(t, w.dir, "replay", "resume", id, "--yes", "--stop-after", "5%")
	if !strings.Contains(out, "stage 2: 11 of 60 replayed") || !strings.Contains(out, "60 replayed: 58 succeeded, 2 failed") {
		t.Errorf("resume:\n%s", out)
	}
}

// --edit took broken JSON without a word.
func TestReplay_editKeepsJSON(t *testing.T) {
	w := newWorld(t, billing)
	fill(t, w.js, 1, 1)
	script := filepath.Join(w.dir, "edit")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s' \"$BODY\" > \"$1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EDITOR", script)
	t.Setenv("VISUAL", "")
	t.Setenv("BODY", "{\"n\": 1,\n \"x\": }")
	code, _, stderr := relay(t, w.dir, "dlq", "replay", "1", "--edit", "--yes")
	_, kept, _ := strings.Cut(stderr, "what you wrote is in ")
	if code != 1 || !strings.Contains(stderr, "line 2, column 7") || kept == "" {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	kept = strings.TrimSpace(kept)
	t.Cleanup(func() { os.Remove(kept) })
	if b, err := os.ReadFile(kept); err != nil || string(b) != os.Getenv("BODY") {
		t.Errorf("kept: %s, %v", b, err)
	}
	if n := left(t, w.js, "RELAY_DLQ"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// A rate or a threshold that is no number failed after the question, as a fault of JSON; a rate near 0 was said to take a time below 0; and what resume asked
// about left out --limit and --after: it was "all".
func TestReplay_regressionNumbersThatAreNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 5, 5)
	for _, flag := range [][]string{{"--rate", "nan"}, {"--rate", "inf"}, {"--rate", "-inf"}, {"--stop-after", "nan%"}} {
		if code, out, stderr := relay(t, w.dir, append([]string{"dlq", "replay", "--yes"}, flag...)...); code != 2 || out != "" || !strings.Contains(stderr, flag[0]) {
			t.Errorf("%q: exit %d, %s%s", flag, code, out, stderr)
		}
	}
	if out := must(t, w.dir, "dlq", "replay", "--dry-run", "--rate", "1e-9"); !strings.Contains(out, "at 1e-09 a second: more than a year\n") {
		t.Errorf("a rate near 0: %s", out)
	}
	out := must(t, w.dir, "dlq", "discard", "--after", "1", "--limit", "2", "--yes")
	if !strings.Contains(out, "2 discarded") {
		t.Fatal(out)
	}
	id := strings.Fields(strings.Split(must(t, w.dir, "replay", "ls"), "\n")[1])[0]
	if out := must(t, w.dir, "replay", "show", id); !strings.Contains(out, ": --after 1 --limit 2\n") {
		t.Errorf("show: %s", out)
	}
}
