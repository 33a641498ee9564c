package dlq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

// route stands for a relay: it takes the due messages of the route billing, tells their verdicts, and keeps a ledger.
type route struct {
	t    *testing.T
	jobs *Jobs

	mu    sync.Mutex
	fail  func(o Origin) bool
	mute  func(o Origin) bool
	order []Origin
	times map[string]int
}

// serve runs the route until the test ends.
func serve(t *testing.T, js jetstream.JetStream, jobs *Jobs) *route {
	t.Helper()
	r := &route{t: t, jobs: jobs, times: make(map[string]int)}
	n := 0
	consuming, err := takes(t, js, "billing").Consume(func(m jetstream.Msg) {
		o, _, err := retry.Unwrap(m.Headers())
		if err != nil {
			t.Error(err)
			return
		}
		n++
		v := Verdict{Message: MessageToken(o), OK: true}
		r.mu.Lock()
		r.order = append(r.order, o)
		r.times[v.Message]++
		if r.fail != nil && r.fail(o) {
			v.OK, v.Route, v.Error = false, "billing", fmt.Sprintf("order %d is locked", o.Sequence)
		}
		mute := r.mute != nil && r.mute(o)
		r.mu.Unlock()
		if !mute {
			// Twice: a message may be told of again after a crash.
			for i := range 2 {
				if err := jobs.Tell(context.Background(), o.Job, fmt.Sprintf("%d-%d", n, i), []Verdict{v}); err != nil {
					t.Error(err)
				}
			}
		}
		if err := m.Ack(); err != nil {
			t.Error(err)
		}
	}, jetstream.ConsumeErrHandler(func(jetstream.ConsumeContext, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consuming.Stop()
		<-consuming.Closed()
	})
	return r
}

func (r *route) handled() []Origin {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// once fails the test unless each of n messages was handled exactly once.
func (r *route) once(n int) {
	r.t.Helper()
	natstest.Eventually(r.t, fmt.Sprint(n, " messages are handled"), func() bool { return len(r.handled()) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, times := range r.times {
		if times != 1 {
			r.t.Errorf("%s was handled %d times", m, times)
		}
	}
	if len(r.times) != n {
		r.t.Errorf("%d messages handled, want %d", len(r.times), n)
	}
}

func openJobs(t *testing.T, js jetstream.JetStream) *Jobs {
	t.Helper()
	jobs, err := OpenJobs(t.Context(), js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

// newRun plans a job and creates it.
func newRun(t *testing.T, s *Store, jobs *Jobs, job Job, c Choice) *Run {
	t.Helper()
	plan, err := s.Plan(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	job.ID, job.State, job.Runner, job.Created = NewJobID(time.Now()), JobRunning, "me", time.Now()
	job.Total, job.Last, job.Filter, job.Numbers = plan.Total+plan.Refused, plan.Last, c.Filter, c.Numbers
	if err := jobs.Create(t.Context(), &job); err != nil {
		t.Fatal(err)
	}
	return &Run{Store: s, Jobs: jobs, Job: &job, Plan: plan, Runner: "me", beat: 20 * time.Millisecond, stall: 100 * time.Millisecond}
}

// again is the job as somebody else would resume it.
func again(t *testing.T, r *Run, runner string) *Run {
	t.Helper()
	job, err := r.Jobs.Get(t.Context(), r.Job.ID)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := r.Store.Plan(t.Context(), Choice{Filter: job.Filter, Last: job.Last})
	if err != nil {
		t.Fatal(err)
	}
	return &Run{Store: r.Store, Jobs: r.Jobs, Job: &job, Plan: plan, Runner: runner, beat: r.beat, stall: r.stall}
}

func TestRun_inTheOrderOfTheOriginals(t *testing.T) {
	s, js := setup(t, Config{})
	const n = 300
	for _, i := range rand.Perm(n) { // dead-lettered in any order
		e := entry(uint64(i + 1))
		e.Subject = fmt.Sprintf("orders.%d", i%7)
		put(t, s, e)
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	run := newRun(t, s, jobs, Job{Wait: true}, Choice{})
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(n)
	last := map[string]uint64{}
	for _, o := range r.handled() {
		if o.Sequence < last[o.Subject] {
			t.Errorf("%s: %d after %d", o.Subject, o.Sequence, last[o.Subject])
		}
		last[o.Subject] = o.Sequence
		if o.Job != run.Job.ID || o.Replay != 1 || len(o.Past) != 1 || o.Past[0].Error != "connection refused" {
			t.Errorf("lineage %+v", o)
		}
	}
	if job := run.Job; job.State != JobDone || job.Handed != n || messages(t, js, s.Name()) != 0 {
		t.Errorf("job %+v", job)
	}
	tally, _, err := jobs.Results(t.Context(), run.Job.ID)
	if err != nil || tally != (Tally{OK: n}) {
		t.Errorf("verdicts %+v, %v", tally, err)
	}
}

func TestRun_rate(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(400) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	run := newRun(t, s, jobs, Job{Rate: 200}, Choice{})
	began := time.Now()
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	// 400 at 200/s with a burst of 50. A loaded machine may be slower, never faster.
	if took := time.Since(began); took < 1700*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// What stays, or is gone, took a turn of the rate: thousands of such entries in front of good ones held these back for hours.
func TestRun_regressionTheRateIsThatOfWhatIsHandedOver(t *testing.T) {
	s, js := setup(t, Config{})
	const gone, good = 600, 3
	for i := range uint64(gone + good) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	run := newRun(t, s, jobs, Job{Rate: 1}, Choice{}) // 10 minutes for all of them
	for seq := range uint64(gone) {
		if err := s.Discard(t.Context(), seq+1); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if err := run.Do(ctx); err != nil || run.Job.Handed != good || run.Job.Gone != gone {
		t.Errorf("%d handed over, %d gone, %v", run.Job.Handed, run.Job.Gone, err)
	}
	// The first one has a turn at once.
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("three at one a second took %v", took)
	}
}

func TestRun_stagesStopAtFailuresAndGoOn(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(150) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	r.fail = func(o Origin) bool { return o.Sequence >= 7 && o.Sequence <= 11 } // the end of the stage of 10
	run := newRun(t, s, jobs, Job{Staged: true, StopAfter: 20}, Choice{})
	var stages []int
	run.StageDone = func(p Progress) { stages = append(stages, p.Handed) }
	err := run.Do(t.Context())
	var stopped *StoppedError
	if !errors.Is(err, ErrTooManyFailures) || !errors.As(err, &stopped) || stopped.Job != run.Job.ID {
		t.Fatalf("got %v", err)
	}
	if run.Job.Handed != 11 || run.Job.State != JobStopped || messages(t, js, s.Name()) != 139 {
		t.Errorf("job %+v", run.Job)
	}
	r.mu.Lock()
	r.fail = nil
	r.mu.Unlock()
	next := again(t, run, "you")
	next.StageDone = func(p Progress) { stages = append(stages, p.Handed) }
	if err := next.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(stages, []int{1, 21, 121, 150}) {
		t.Errorf("stages ended at %v", stages)
	}
	r.once(150)
	tally, groups, err := jobs.Results(t.Context(), run.Job.ID)
	if err != nil || tally != (Tally{OK: 145, Failed: 5}) || len(groups) != 1 || groups[0].Count != 5 || groups[0].Fingerprint != "order <*> is locked" {
		t.Errorf("verdicts %+v %+v, %v", tally, groups, err)
	}
}

// A relay that was killed told nothing of messages that it had handled: the job must not wait for them for ever.
func TestRun_lostVerdicts(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(30) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	r.mute = func(o Origin) bool { return o.Sequence%10 == 1 }
	run := newRun(t, s, jobs, Job{Staged: true, StopAfter: 10}, Choice{})
	var last Progress
	run.Progress = func(p Progress) { last = p }
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(30)
	if last.Lost != 3 || last.Verdicts.OK != 27 || last.State != JobDone {
		t.Errorf("ended with %+v", last)
	}
}

func TestRun_cancelledFromElsewhereAndResumed(t *testing.T) {
	s, js := setup(t, Config{})
	const n = 500
	for i := range uint64(n) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	run := newRun(t, s, jobs, Job{Rate: 100}, Choice{})
	done := make(chan error, 1)
	go func() { done <- run.Do(t.Context()) }()
	natstest.Eventually(t, "some are handled", func() bool { return len(r.handled()) > 10 })
	if _, err := jobs.Cancel(t.Context(), run.Job.ID, "ada"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrJobCancelled) {
		t.Fatalf("got %v", err)
	}
	job, err := jobs.Get(t.Context(), run.Job.ID)
	if err != nil || job.State != JobCancelled || job.Why != "cancelled by ada" || job.Handed+messages(t, js, s.Name()) != n {
		t.Errorf("job %+v, %v; %d left", job, err, messages(t, js, s.Name()))
	}
	next := again(t, run, "you")
	next.Job.Rate = 0
	if err := next.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(n)
	if next.Job.Handed != n || next.Job.State != JobDone {
		t.Errorf("job %+v", next.Job)
	}
	list, err := jobs.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != JobDone {
		t.Errorf("jobs %+v, %v", list, err)
	}
}

// What somebody else replayed or discarded while a job was stopped was counted as handed over by it.
func TestRun_regressionWhatWentWhileItWasStoppedIsGone(t *testing.T) {
	s, js := setup(t, Config{})
	const n = 200
	for i := range uint64(n) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	serve(t, js, jobs)
	run := newRun(t, s, jobs, Job{Rate: 100}, Choice{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run.Do(ctx) }()
	natstest.Eventually(t, "some are handed over", func() bool { return messages(t, js, s.Name()) < n-10 })
	stop()
	if err := <-done; err == nil {
		t.Fatal("it ran to its end")
	}
	handed := run.Job.Handed
	left, err := s.Plan(t.Context(), Choice{})
	if err != nil {
		t.Fatal(err)
	}
	const discarded = 5
	for _, number := range slices.Collect(left.Numbers())[:discarded] {
		if err := s.Discard(t.Context(), number); err != nil {
			t.Fatal(err)
		}
	}
	next := again(t, run, "you")
	next.Job.Rate = 0
	if err := next.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if j := next.Job; j.Gone != discarded || j.Handed != n-discarded || handed == 0 {
		t.Errorf("%d of %d were handed over, then %d discarded; job %+v", handed, n, discarded, j)
	}
}

func TestRun_oneRunnerAtATime(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(200) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	run := newRun(t, s, jobs, Job{Rate: 50}, Choice{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run.Do(ctx) }()
	natstest.Eventually(t, "it runs", func() bool { return messages(t, js, s.Name()) < 190 })
	if err := again(t, run, "you").Do(t.Context()); !errors.Is(err, ErrJobTaken) {
		t.Errorf("a second runner: got %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || run.Job.Why != "interrupted" {
		t.Errorf("interrupted: got %v, %q", err, run.Job.Why)
	}
	if run.Job.Handed+messages(t, js, s.Name()) != 200 {
		t.Errorf("%d handed, %d left", run.Job.Handed, messages(t, js, s.Name()))
	}
}

// A runner that crashed is silent: its job says that it runs, and nobody writes it.
func TestRun_takesOverFromACrash(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(20) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	run := newRun(t, s, jobs, Job{}, Choice{})
	// It had handed one over, and had not removed its entry.
	e := collect(t, s, Filter{Limit: 1})[0]
	if err := handOverOnly(t, s, e, run.Job.ID); err != nil {
		t.Fatal(err)
	}
	next := again(t, run, "you")
	if err := next.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(20)
	if next.Job.Handed != 20 || next.Job.Runner != "you" {
		t.Errorf("job %+v", next.Job)
	}
}

// Of two jobs that replayed the same entries at once, each counted all of them as replayed, and waited for verdicts that belong to the other one.
func TestRun_regressionRivalsHandOverIsNotCounted(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range uint64(20) {
		put(t, s, entry(i+1))
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	rival := newRun(t, s, jobs, Job{}, Choice{})
	run := newRun(t, s, jobs, Job{Wait: true}, Choice{})
	// The rival had handed one over, and had not removed its entry.
	e := collect(t, s, Filter{Limit: 1})[0]
	if err := handOverOnly(t, s, e, rival.Job.ID); err != nil {
		t.Fatal(err)
	}
	var last Progress
	run.Progress = func(p Progress) { last = p }
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(20)
	if last.Handed != 19 || last.Gone != 1 || last.Verdicts.OK != 19 || last.Lost != 0 {
		t.Errorf("%d handed over, %d gone, %d verdicts, %d lost", last.Handed, last.Gone, last.Verdicts.OK, last.Lost)
	}
	if n := messages(t, js, s.Name()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// handOverOnly is the first half of a replay of e by a job.
func handOverOnly(t *testing.T, s *Store, e Entry, job string) error {
	t.Helper()
	m, err := s.get(t.Context(), e.StoredSequence)
	if err != nil {
		return err
	}
	h, err := s.prepare(t.Context(), m, e.isAt, Target{Job: job})
	if err != nil {
		return err
	}
	_, err = s.js.PublishMsg(t.Context(), h.msg)
	return err
}

// F96: what cannot be replayed is refused with a reason, and stays; the rest goes.
func TestRun_refuses(t *testing.T) {
	s, js := setup(t, Config{})
	gone, large := entry(2), entry(3)
	gone.Route = "closed"
	large.Data = randomBytes(1 << 20)
	put(t, s, entry(1), gone, large, entry(4))
	if _, err := js.Publish(t.Context(), "relay.dlq.stranger", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteObjectStore(t.Context(), s.Bucket()); err != nil { // the body of 3
		t.Fatal(err)
	}
	jobs := openJobs(t, js)
	r := serve(t, js, jobs)
	run := newRun(t, s, jobs, Job{}, Choice{Refuse: func(e Entry) string {
		if e.Route == "closed" {
			return "no route closed"
		}
		return ""
	}})
	if run.Plan.Total != 3 || run.Plan.Refused != 2 {
		t.Fatalf("plan %+v", run.Plan)
	}
	var told []Refusal
	run.Refused = func(r Refusal) { told = append(told, r) }
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.once(2)
	if run.Job.Handed != 2 || run.Job.Refused != 3 || len(run.Job.Refusals) != 3 || len(told) != 1 || messages(t, js, s.Name()) != 3 {
		t.Errorf("job %+v, told %v", run.Job, told)
	}
}

// The server goes away in the middle and comes back: nothing is lost, nothing delivered twice.
func TestRun_serverRestarts(t *testing.T) {
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	s, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"}, AllowMsgSchedules: true, Duplicates: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	takes(t, js, "billing")
	const n = 2000
	for i := range uint64(n) {
		put(t, s, entry(i+1))
	}
	run := newRun(t, s, openJobs(t, js), Job{Rate: 2000}, Choice{})
	done := make(chan error, 1)
	go func() { done <- run.Do(t.Context()) }()
	natstest.Eventually(t, "it runs", func() bool { return messages(t, js, "RELAY_RETRY") > 100 })
	srv.Restart()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// The retry stream keeps them here, so each can be counted.
	if got := messages(t, js, "RELAY_RETRY"); got != n || messages(t, js, s.Name()) != 0 {
		t.Errorf("%d handed over, %d left", got, messages(t, js, s.Name()))
	}
}

func TestRun_edited(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1))
	jobs := openJobs(t, js)
	e := collect(t, s, Filter{WithBody: true})[0]
	run := newRun(t, s, jobs, Job{Edited: true}, Choice{Numbers: []uint64{e.StoredSequence, e.StoredSequence}})
	run.Edited = []byte("mended")
	if err := s.KeepOriginal(t.Context(), run.Job.ID, e); err != nil {
		t.Fatal(err)
	}
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := due(t, js)
	o, header, err := retry.Unwrap(m.Headers())
	if err != nil || string(m.Data()) != "mended" || o.Edited != run.Job.ID || header.Get("Trace-Id") != "a" {
		t.Errorf("%q, %+v, %v", m.Data(), o, err)
	}
	header, data, err := s.Original(t.Context(), o.Edited)
	if err != nil || string(data) != "body 1" || header.Get("Trace-Id") != "a" {
		t.Errorf("the first body is %q: %v", data, err)
	}
	if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	// Handed over as it was, a moment ago: the edited body would be dropped as a duplicate without a word.
	put(t, s, entry(1))
	e = collect(t, s, Filter{})[0]
	if err := s.Replay(t.Context(), e, Target{Edited: []byte("too late")}); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want ErrRefused", err)
	}
}

// silent publishes, and loses the answers to what is published without waiting.
type silent struct {
	jetstream.JetStream
	taken bool // an instance takes it at once
	t     *testing.T
}

func (s silent) PublishMsgAsync(m *nats.Msg, _ ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	ack, err := s.PublishMsg(s.t.Context(), m)
	if err != nil {
		return nil, err
	}
	if s.taken {
		stream, err := s.Stream(s.t.Context(), ack.Stream)
		if err == nil {
			err = stream.DeleteMsg(s.t.Context(), ack.Sequence)
		}
		if err != nil {
			s.t.Error(err)
		}
	}
	return nil, nats.ErrTimeout
}

// An edited message whose hand-over got no answer was published again, and refused as one that had been handed over with its first body.
func TestRun_regressionEditedOfWhichTheAnswerIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		taken, before bool
	}{
		"it waits":                          {},
		"it is taken":                       {taken: true},
		"it was handed over as it was, too": {before: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, js := setup(t, Config{})
			put(t, s, entry(1))
			e := collect(t, s, Filter{WithBody: true})[0]
			if c.before { // and the removal failed
				m, err := s.get(t.Context(), e.StoredSequence)
				if err != nil {
					t.Fatal(err)
				}
				h, err := s.prepare(t.Context(), m, e.isAt, Target{})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := js.PublishMsg(t.Context(), h.msg); err != nil {
					t.Fatal(err)
				}
			}
			s.js = silent{js, c.taken, t}
			run := newRun(t, s, openJobs(t, js), Job{Edited: true}, Choice{Numbers: []uint64{e.StoredSequence}})
			run.Edited = []byte("mended")
			if err := s.KeepOriginal(t.Context(), run.Job.ID, e); err != nil {
				t.Fatal(err)
			}
			want := Job{Handed: 1}
			if c.before {
				want = Job{Refused: 1}
			}
			if err := run.Do(t.Context()); err != nil || run.Job.Handed != want.Handed || run.Job.Refused != want.Refused {
				t.Errorf("%v: %d handed over, refused: %v", err, run.Job.Handed, run.Job.Refusals)
			}
			if left := messages(t, js, s.Name()); left != want.Refused {
				t.Errorf("%d are left", left)
			}
		})
	}
}

// From a stream that was sealed nothing can be removed: everything was handed over, stayed, and was handed over again by the next replay.
func TestRun_regressionOfASealedStream(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1), entry(2))
	cfg := s.stream.CachedInfo().Config
	cfg.Sealed = true
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	run := newRun(t, s, openJobs(t, js), Job{}, Choice{})
	if err := run.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "stream RELAY_DLQ is sealed") || run.Job.Handed != 0 || run.Job.State != JobStopped {
		t.Errorf("%v: %+v", err, run.Job)
	}
	if n := messages(t, js, "RELAY_RETRY"); n != 0 {
		t.Errorf("%d handed over", n)
	}
}
