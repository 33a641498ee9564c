package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// clock is moved by tests.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time  { return time.Unix(0, c.at.Load()) }
func (c *clock) set(t time.Time) { c.at.Store(t.UnixNano()) }

// start runs a runner until the test, or the returned function, ends it.
func start(t *testing.T, r *Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return stop
}

func runner(js jetstream.JetStream, instance string, c *clock, list ...Schedule) *Runner {
	r := New(js, Config{Service: "relay", Instance: instance, Replicas: 1, Schedules: list, Logger: slog.New(slog.DiscardHandler)})
	if c != nil {
		r.now = c.now
	}
	return r
}

func jobs(t *testing.T, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func count(t *testing.T, s jetstream.Stream) int {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(info.State.Msgs)
}

func records(t *testing.T, js jetstream.JetStream) *Records {
	t.Helper()
	r, err := OpenRecords(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func record(t *testing.T, js jetstream.JetStream, name string) Record {
	t.Helper()
	rec, _, err := records(t, js).Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func counted(r *Runner, name, result string) float64 {
	var m dto.Metric
	if err := r.runs.WithLabelValues(name, result).Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

var noon = time.Date(2026, 11, 22, 12, 0, 30, 0, time.UTC)

// The watch of a bucket that was deleted was kept until the runner ended, beside that of the new one.
func TestRunner_regressionTheWatchOfADeletedBucketStayed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	jobs(t, js)
	name := "KV_" + Bucket("relay")
	bucket := ownstream.Bucket(Bucket("relay"), 1, 0)
	bucket.AllowDirect = false // so that the server says what is missing
	if _, err := js.CreateStream(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	start(t, runner(js, "a", nil, Schedule{Name: "often", Every: time.Second, Subject: "jobs.often"}))
	watched := func() bool {
		stream, err := js.Stream(t.Context(), name)
		return err == nil && stream.CachedInfo().State.Consumers == 1
	}
	natstest.Eventually(t, "the bucket is watched", watched)
	const all = 4 // the answers to requests, this watch, and what is read of delayed messages
	natstest.Eventually(t, "the runner is open", func() bool { return js.Conn().NumSubscriptions() == all })
	if err := js.DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "the new bucket is watched", watched)
	if n := js.Conn().NumSubscriptions(); n != all {
		t.Errorf("%d subscriptions, %d before", n, all)
	}
}

func TestRunner_instancesPublishEachRunOnce(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	c := &clock{}
	c.set(noon)
	s := Schedule{Name: "minutely", Cron: "* * * * *", Subject: "jobs.minutely", Body: "go", Headers: map[string]string{"Kind": "tick"}}
	for i := range 3 {
		start(t, runner(js, fmt.Sprintf("i%d", i), c, s))
	}
	r := records(t, js)
	for n := range 10 {
		natstest.Eventually(t, "the next run is recorded", func() bool {
			rec := record(t, js, "minutely")
			return rec.Claim == nil && rec.Next.Equal(noon.Truncate(time.Minute).Add(time.Duration(n+1)*time.Minute))
		})
		c.set(noon.Add(time.Duration(n+1) * time.Minute))
		if _, err := r.Change(t.Context(), "minutely", func(*Record) {}); err != nil { // wakes the instances, whose clock does not
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "10 runs", func() bool { return count(t, stream) == 10 && record(t, js, "minutely").Claim == nil })
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil || string(m.Data) != "go" || m.Header.Get("Kind") != "tick" || m.Header.Get("Relay-Schedule-Run") != "2026-11-22T12:01:00Z" {
		t.Errorf("%+v, %v", m, err)
	}
	if n := count(t, stream); n != 10 {
		t.Errorf("%d messages, want 10", n)
	}
}

// The id of a run was its name and its time: whoever may publish anything to its stream published something with that id within the
// window, and the run was taken for a duplicate, and lost.
func TestRunner_regressionAStrangersMessageIDTakesNoRunAway(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	c := &clock{}
	c.set(noon)
	start(t, runner(js, "i", c, Schedule{Name: "minutely", Cron: "* * * * *", Subject: "jobs.minutely", Body: "go"}))
	run := noon.Truncate(time.Minute).Add(time.Minute)
	natstest.Eventually(t, "the first run is planned", func() bool { return record(t, js, "minutely").Next.Equal(run) })
	for _, id := range []string{"relay.minutely@" + run.Format(time.RFC3339), "relay.minutely@" + run.Format(time.RFC3339) + "."} {
		if _, err := js.Publish(t.Context(), "jobs.other", nil, jetstream.WithMsgID(id)); err != nil {
			t.Fatal(err)
		}
	}
	c.set(run)
	if _, err := records(t, js).Change(t.Context(), "minutely", func(*Record) {}); err != nil { // wakes it
		t.Fatal(err)
	}
	natstest.Eventually(t, "the run is over", func() bool { rec := record(t, js, "minutely"); return rec.Last != nil && rec.Claim == nil })
	if m, err := stream.GetLastMsgForSubject(t.Context(), "jobs.minutely"); err != nil || string(m.Data) != "go" {
		t.Errorf("%v, %+v", err, record(t, js, "minutely").Last)
	}
}

// An instance that was killed after it published, and before it wrote that down.
func TestRunner_takesOverFromAnInstanceThatDied(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	c := &clock{}
	c.set(noon)
	s := Schedule{Name: "minutely", Cron: "* * * * *", Subject: "jobs.minutely"}
	run := noon.Truncate(time.Minute)
	dead := runner(js, "dead", c)
	if _, err := dead.publish(t.Context(), s, run, "relay.minutely@"+run.Format(time.RFC3339)); err != nil {
		t.Fatal(err)
	}
	_, err := records(t, js).Change(t.Context(), s.Name, func(r *Record) {
		r.Timing, r.Next, r.Claim = s.Timing(), run, &Claim{Run: run, Instance: "dead"}
	})
	if err != nil {
		t.Fatal(err)
	}
	r := runner(js, "next", c, s)
	r.patience = 50 * time.Millisecond
	start(t, r)
	natstest.Eventually(t, "the run is finished by the other instance", func() bool {
		rec := record(t, js, s.Name)
		return rec.Claim == nil && rec.Last != nil && rec.Last.Result == Duplicate && rec.Last.Instance == "next" && rec.Next.After(noon)
	})
	if n := count(t, stream); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	if n := counted(r, s.Name, Duplicate); n != 1 {
		t.Errorf("%v duplicates are counted, want 1", n)
	}
}

func TestRunner_catchUp(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int{CatchUpOne: 1, CatchUpNone: 0} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			js := natstest.Start(t).JetStream(t)
			stream := jobs(t, js)
			c := &clock{}
			c.set(noon)
			s := Schedule{Name: "hourly", Cron: "0 * * * *", Subject: "jobs.hourly", CatchUp: word}
			_, err := records(t, js).Change(t.Context(), s.Name, func(r *Record) {
				r.Timing, r.Next = s.Timing(), time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
			})
			if err != nil {
				t.Fatal(err)
			}
			c.set(noon.Add(10 * time.Minute))
			r := runner(js, "i", c, s)
			start(t, r)
			natstest.Eventually(t, "the next run is at 13", func() bool {
				return record(t, js, s.Name).Next.Equal(time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC))
			})
			if n := count(t, stream); n != want {
				t.Errorf("%d messages, want %d", n, want)
			}
			natstest.Eventually(t, "the others are counted", func() bool {
				return counted(r, s.Name, Missed) == float64(5-want)
			})
		})
	}
}

func TestRunner_pauseSurvivesARestartAndRunIsBesideIt(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	c := &clock{}
	c.set(noon)
	s := Schedule{Name: "minutely", Cron: "* * * * *", Subject: "jobs.minutely"}
	stop := start(t, runner(js, "before", c, s))
	natstest.Eventually(t, "it has begun", func() bool { return !record(t, js, s.Name).Next.IsZero() })
	r := records(t, js)
	change := func(f func(*Record)) {
		t.Helper()
		if _, err := r.Change(t.Context(), s.Name, f); err != nil {
			t.Fatal(err)
		}
	}
	change(func(r *Record) { r.Paused = &Order{By: "ann"} })
	stop()
	c.set(noon.Add(time.Hour))
	start(t, runner(js, "after", c, s))
	change(func(r *Record) { r.Asked = &Order{By: "ann", At: noon} })
	natstest.Eventually(t, "the run that was asked for", func() bool { return record(t, js, s.Name).Asked == nil })
	if n := count(t, stream); n != 1 {
		t.Errorf("%d messages, want only the one that was asked for", n)
	}
	change(func(r *Record) { r.Paused, r.Next = nil, time.Time{} })
	natstest.Eventually(t, "it goes on after the pause", func() bool { return record(t, js, s.Name).Next.After(c.now()) })
	if n := count(t, stream); n != 1 {
		t.Errorf("%d messages: runs of the pause were published", n)
	}
}

func TestRunner_saysThatNoStreamHoldsTheSubject(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	s := Schedule{Name: "secondly", Every: time.Second, Subject: "jobs.secondly"}
	r := runner(js, "i", nil, s)
	start(t, r)
	natstest.Eventually(t, "it is said", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "schedule secondly: no stream holds subject jobs.secondly") && strings.Contains(err.Error(), "(since ")
	})
	stream := jobs(t, js)
	natstest.Eventually(t, "it is published after all", func() bool { return count(t, stream) > 0 && r.Ready() == nil })
}

func TestLater_isPublishedOnceWhenDue(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	l, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		start(t, runner(js, "i", nil))
	}
	delay := func(id, body string, in time.Duration) {
		t.Helper()
		m := &nats.Msg{Subject: "jobs.remind", Header: nats.Header{"Kind": {"a", "b"}}, Data: []byte(body)}
		if _, err := l.Delay(t.Context(), id, m, time.Now().Add(in)); err != nil {
			t.Fatal(err)
		}
	}
	delay("first", "old", time.Hour)
	delay("taken-back", "never", time.Hour)
	if list, more, err := l.List(t.Context(), 1); err != nil || !more || len(list) != 1 || list[0].ID != "first" && list[0].ID != "taken-back" || list[0].Subject != "jobs.remind" {
		t.Errorf("%+v, more %v, %v", list, more, err)
	}
	if n, err := l.Remove(t.Context(), "taken-back"); n != 1 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	began := time.Now()
	delay("first", "new", 300*time.Millisecond)
	natstest.Eventually(t, "published", func() bool { return count(t, stream) == 1 })
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("published after %v", took)
	}
	delay("first", "again", 0) // its stream knows the id
	natstest.Eventually(t, "nothing waits", func() bool {
		list, _, err := l.List(t.Context(), 1)
		return err == nil && len(list) == 0
	})
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Data) != "new" || len(m.Header.Values("Kind")) != 2 || m.Header.Get("Nats-Msg-Id") != "first" || m.Header.Get("Nats-Scheduler") != "" {
		t.Errorf("%s %v", m.Data, m.Header)
	}
	if n := count(t, stream); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// More delayed messages that no stream takes than a consumer has pending by default stood before those of all others.
func TestLater_regressionMessagesThatNoStreamTakes(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	if _, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	start(t, runner(js, "i", nil))
	now := "@at " + time.Now().UTC().Format(time.RFC3339Nano)
	delay := func(id, subj string) {
		t.Helper()
		m := &nats.Msg{Subject: "relay.later.wait." + id + "." + subj, Header: nats.Header{"Nats-Schedule": {now}, "Nats-Schedule-Target": {"relay.later.due." + id + "." + subj}}}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1100 {
		delay(fmt.Sprint(i), "nowhere.x")
	}
	time.Sleep(3 * time.Second) // they are in hand
	delay("good", "jobs.good")
	natstest.Eventually(t, "the message of another", func() bool { return count(t, stream) == 1 })
}

// A delayed message that the server sent over a connection which was lost came half a minute late, and one that was due after that up to 5 s: relay waited
// for an answer over the connection before.
func TestLater_regressionTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream(t)
	stream := jobs(t, js)
	proxy := natstest.NewProxy(t, s.URL())
	over, err := jetstream.New(proxy.Conn(t, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	start(t, runner(over, "i", nil))
	delivered := func() (n, waiting int) {
		c, err := js.Consumer(t.Context(), LaterStream("relay"), "relay")
		if err != nil {
			return 0, 0
		}
		return int(c.CachedInfo().Delivered.Consumer), c.CachedInfo().NumWaiting
	}
	delay := func(id string, in time.Duration) {
		t.Helper()
		if _, err := l.Delay(t.Context(), id, &nats.Msg{Subject: "jobs." + id}, time.Now().Add(in)); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "it pulls", func() bool { _, waiting := delivered(); return waiting > 0 })
	delay("lost", 2*time.Second)
	natstest.Eventually(t, "it waits", func() bool { list, _, err := l.List(t.Context(), 9); return err == nil && len(list) == 1 })
	time.Sleep(500 * time.Millisecond)
	proxy.Stall()
	natstest.Eventually(t, "it is delivered", func() bool { n, _ := delivered(); return n == 1 })
	proxy.Cut()
	proxy.Resume()
	cut := time.Now()
	time.Sleep(300 * time.Millisecond) // the server has forgotten who asked over the connection before
	natstest.Eventually(t, "it pulls again", func() bool { _, waiting := delivered(); return waiting > 0 })
	if late := time.Since(cut); late > 3*time.Second {
		t.Errorf("it pulled again after %v", late)
	}
	natstest.Eventually(t, "it is published", func() bool { return count(t, stream) == 1 })
	if late := time.Since(cut); late > 15*time.Second {
		t.Errorf("it was published after %v", late)
	}
}

// Whatever moment of its way a connection is lost in, a delayed message is published, and once.
func TestLater_theConnectionIsLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	const n = 40
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			js := s.JetStream(t)
			stream := jobs(t, js)
			proxy := natstest.NewProxy(t, s.URL())
			over, err := jetstream.New(proxy.Conn(t, nats.ReconnectBufSize(-1)))
			if err != nil {
				t.Fatal(err)
			}
			l := opened(t, js, Limits{})
			start(t, runner(over, "i", nil))
			began := time.Now()
			for i := range n {
				due := began.Add(rand.N(3 * time.Second))
				if _, err := l.Delay(t.Context(), fmt.Sprint(i), &nats.Msg{Subject: fmt.Sprint("jobs.", i)}, due); err != nil {
					t.Fatal(err)
				}
			}
			for range 5 {
				time.AfterFunc(rand.N(3*time.Second), proxy.Cut)
			}
			time.Sleep(time.Until(began.Add(3 * time.Second)))
			natstest.Eventually(t, "all are published", func() bool { return count(t, stream) >= n })
			if late := time.Since(began.Add(3 * time.Second)); late > 25*time.Second { // 5 s for each delivery that was lost
				t.Errorf("the last one came after %v", late)
			}
			if got := count(t, stream); got != n {
				t.Errorf("%d messages, want %d", got, n)
			}
		})
	}
}

// What is in hand of more messages than there are slots would come again before its turn: nobody extends its lease.
func TestLater_whatHasNoSlotIsLeftToTheServer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream(t)
	jobs(t, js)
	if _, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Conn(t).Subscribe("deaf.>", func(*nats.Msg) {}); err != nil { // no stream: each takes the time of a request
		t.Fatal(err)
	}
	now := "@at " + time.Now().UTC().Format(time.RFC3339Nano)
	for i := range handedAtOnce + 3*atOnce {
		m := &nats.Msg{Subject: fmt.Sprintf("relay.later.wait.%d.deaf.%d", i, i), Header: nats.Header{"Nats-Schedule": {now}, "Nats-Schedule-Target": {fmt.Sprintf("relay.later.due.%d.deaf.%d", i, i)}}}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	start(t, runner(js, "i", nil))
	inHand := func() int {
		c, err := js.Consumer(t.Context(), LaterStream("relay"), "relay")
		if err != nil {
			return 0
		}
		return c.CachedInfo().NumAckPending
	}
	natstest.Eventually(t, "all slots are taken", func() bool { return inHand() > handedAtOnce-atOnce })
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n := inHand(); n > handedAtOnce {
			t.Fatalf("%d messages are in hand, of %d slots", n, handedAtOnce)
		}
	}
}

// 200 due messages for subjects without a stream stopped all others for four minutes, and nobody saw them: they were not listed, and the log said that relay
// waited no longer.
func TestLater_regressionOnesThatNobodyTakesHoldUpNoOther(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream(t)
	stream := jobs(t, js)
	l, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// Somebody listens, and is no stream: each of these takes the time of a request.
	if _, err := s.Conn(t).Subscribe("deaf.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	r := runner(js, "i", nil)
	start(t, r)
	due := time.Now().Add(3 * time.Second)
	for i := range 200 {
		for _, subj := range []string{"nowhere.%d", "deaf.%d", "deaf.same", "jobs.%d"} {
			if subj != "deaf.same" {
				subj = fmt.Sprintf(subj, i)
			}
			if _, err := l.Delay(t.Context(), fmt.Sprintf("%s-%d", strings.ReplaceAll(subj, ".", "-"), i), &nats.Msg{Subject: subj}, due); err != nil {
				t.Fatal(err)
			}
		}
	}
	from := time.Now() // beside busy processes the last ones are due before they are published
	if from.Before(due) {
		from = due
	}
	natstest.Eventually(t, "all good ones are there", func() bool { return count(t, stream) == 200 })
	// A tenth of what it was. One after the other the deaf ones would take half an hour; beside busy processes the good ones alone take seconds.
	if late := time.Since(from); late > 25*time.Second {
		t.Errorf("%v late", late)
	}
	natstest.Eventually(t, "the trouble has the number", func() bool {
		return strings.Contains(strings.Join(r.Troubles(), ""), "600 of them cannot be published")
	})
	list, more, err := l.List(t.Context(), 1000)
	if err != nil || more || len(list) != 600 || slices.ContainsFunc(list, func(d Delayed) bool { return !d.Overdue || d.Due.Before(due) }) {
		t.Errorf("%d listed, %v, %v", len(list), more, err)
	}
	if n, err := l.Remove(t.Context(), "deaf-7-7"); n != 1 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	if found, err := l.Find(t.Context(), "nowhere-3-3"); len(found) != 1 || err != nil || found[0].Subject != "nowhere.3" {
		t.Errorf("found %+v, %v", found, err)
	}
	nowhere, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOWHERE", Subjects: []string{"nowhere.>"}})
	if err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "they come when there is a stream", func() bool { return count(t, nowhere) == 200 })
}

// A publisher may name any target for its schedule, and any header.
func TestLater_goesWhereItWaitedForAndNowhereElse(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	if _, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	r := runner(js, "i", nil)
	start(t, r)
	now := "@at " + time.Now().UTC().Format(time.RFC3339Nano)
	for _, m := range []*nats.Msg{
		{Subject: "relay.later.wait.a.jobs.mine", Header: nats.Header{"Nats-Schedule": {now}, "Nats-Schedule-Target": {"relay.later.due.a.jobs.theirs"}}},
		{Subject: "relay.later.wait.b.relay.due.billing.ORDERS.1", Header: nats.Header{"Nats-Schedule": {now}, "Nats-Schedule-Target": {"relay.later.due.b.x"}}},
		{Subject: "relay.later.wait.c.$JS.API.STREAM.DELETE.JOBS", Header: nats.Header{"Nats-Schedule": {now}, "Nats-Schedule-Target": {"relay.later.due.c.x"}}},
		{Subject: "relay.later.due.d.jobs.theirs"},
	} {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "one is published, and three are refused", func() bool {
		return counted(r, DelayedName, Failed) == 3 && count(t, stream) == 1
	})
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || m.Subject != "jobs.mine" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestLater_unstickLeavesWhatIsNotDue(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	l, err := openLater(t.Context(), js, "relay", 1, Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.waits(t, "relay.later.in.a.jobs.a")
	if n, removed, err := l.tidy(t.Context()); n != 0 || removed != 0 || err != nil {
		t.Errorf("%d, %d, %v", n, removed, err)
	}
}
