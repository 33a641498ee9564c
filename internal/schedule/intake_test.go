package schedule

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// stored publishes to the intake, which nobody moves.
func (l *Later) stored(t *testing.T, subject string, due time.Time, data string) entry {
	t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{headerAt: {due.UTC().Format(time.RFC3339Nano)}}}
	ack, err := l.js.PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := l.js.Stream(t.Context(), l.intake)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := stream.GetMsg(t.Context(), ack.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	return entry{subject: raw.Subject, sequence: raw.Sequence, stored: raw.Time, data: raw.Data, header: raw.Header}
}

func opened(t *testing.T, js jetstream.JetStream, limits Limits) *Later {
	t.Helper()
	l, err := openLater(t.Context(), js, "relay", 1, limits, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// waits has a message wait, as one that went through the intake.
func (l *Later) waits(t *testing.T, subject string) {
	t.Helper()
	e := l.stored(t, subject, time.Now().Add(time.Hour), "")
	stream, err := l.js.Stream(t.Context(), l.intake)
	if err == nil {
		err = errors.Join(l.move(t.Context(), e), stream.DeleteMsg(t.Context(), e.sequence))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What is moved once more, because the answer to its ack was lost with the connection, is not in the intake any more. It must not be taken for one that
// somebody took back.
func TestMove_onceMoreAfterItsAck(t *testing.T) {
	t.Parallel()
	l := opened(t, natstest.Start(t).JetStream(t), Limits{})
	e := l.stored(t, "relay.later.in.a.jobs.x", time.Now().Add(time.Hour), "x")
	for range 2 {
		if err := l.move(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		intake, err := l.js.Stream(t.Context(), l.intake)
		if err != nil {
			t.Fatal(err)
		}
		if err := intake.DeleteMsg(t.Context(), e.sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			t.Fatal(err)
		}
		if list, _, err := l.List(t.Context(), 9); err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
	}
}

// Whoever moves what, in which order, and how often: of an id and subject the last one waits, once.
func TestMove_theLastOneWins(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	l := opened(t, js, Limits{})
	in := time.Now().Add(time.Hour)
	first, second := l.stored(t, "relay.later.in.a.jobs.a", in, "first"), l.stored(t, "relay.later.in.a.jobs.a", in, "second")
	for _, e := range []entry{first, first, second, first, second} {
		if err := l.move(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), LaterStream("relay"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), "relay.later.wait.a.jobs.a")
	if err != nil || string(m.Data) != "second" || count(t, stream) != 1 {
		t.Fatalf("%+v, %v, %d wait", m, err, count(t, stream))
	}
	// One that fired is not stored again by an instance that did not hear of it.
	if err := stream.DeleteMsg(t.Context(), m.Sequence); err != nil {
		t.Fatal(err)
	}
	if err := l.move(t.Context(), second); err != nil || count(t, stream) != 0 {
		t.Errorf("%v, %d wait", err, count(t, stream))
	}
	// One that is taken back while it is moved is not stored.
	third := l.stored(t, "relay.later.in.a.jobs.a", in, "third")
	intake, err := js.Stream(t.Context(), l.intake)
	if err != nil {
		t.Fatal(err)
	}
	if err := intake.DeleteMsg(t.Context(), third.sequence); err != nil {
		t.Fatal(err)
	}
	if err := l.move(t.Context(), third); err != nil || count(t, stream) != 0 {
		t.Errorf("%v, %d wait", err, count(t, stream))
	}
}

// A publisher's headers of the server count nowhere: no rollup, no schedule of its own, no lifetime.
func TestIntake_headersOfTheServerCountNowhere(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	l := opened(t, js, Limits{})
	if _, err := l.Delay(t.Context(), "victim", &nats.Msg{Subject: "jobs.victim"}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	start(t, runner(js, "i", nil))
	waits := func() int {
		list, _, err := l.List(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	for _, h := range []nats.Header{
		{"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-TTL": {"1s"}}, {"Nats-Expected-Last-Sequence": {"77"}},
		{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"relay.later.wait.x.jobs.victim"}},
		{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"relay.later.in.x.jobs.victim"}},
		{"Nats-Scheduler": {"relay.later.wait.victim.jobs.victim"}, "Nats-Schedule-Next": {"purge"}},
		{"nats-rollup": {"all"}, "relay-later-from": {"99-99"}, "nats-schedule": {"@every 1s"}},
	} {
		h[headerAt] = []string{now}
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "relay.later.in.evil.jobs.evil", Header: h})
		t.Logf("%v: %v", h, err)
	}
	time.Sleep(3 * time.Second) // long enough for @every 1s
	if n := waits(); n != 1 {
		t.Errorf("%d wait, want 1", n)
	}
	for seq := uint64(1); ; seq++ { // what came through is the publisher's own message, once each
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			break
		}
		if m.Subject != "jobs.evil" || seq > 1 {
			t.Errorf("%d: %s %v", seq, m.Subject, m.Header)
		}
	}
}

// What earlier versions let publishers store goes at the start; what waits by right is kept, and comes.
func TestTidy_upgrade(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	old := laterConfig("relay", 1)
	if _, err := js.CreateStream(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	store := func(subject, schedule, target string, more ...string) {
		t.Helper()
		h := nats.Header{"Nats-Schedule": {schedule}, "Nats-Schedule-Target": {target}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: h, Data: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(in time.Duration) string { return "@at " + time.Now().Add(in).UTC().Format(time.RFC3339Nano) }
	store("relay.later.wait.a.jobs.a", at(2*time.Second), "relay.later.due.a.jobs.a")
	store("relay.later.wait.b.jobs.b", at(2*time.Second), "relay.later.wait.x.jobs.x", "Nats-Schedule-Rollup", "sub")
	store("relay.later.wait.evil.jobs.evil", "@every 1s", "relay.later.wait.flood.jobs.evil")
	start(t, runner(js, "i", nil))
	natstest.Eventually(t, "both come", func() bool { return count(t, stream) == 2 })
	l := AttachLater(js, "relay")
	natstest.Eventually(t, "nothing waits", func() bool {
		list, _, err := l.List(t.Context(), 10)
		return err == nil && len(list) == 0
	})
}

// At the bounds publishers get an error, and nothing that waits is lost. Before, relay warns.
func TestIntake_bounds(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	limits := Limits{MaxMsgs: 10}
	l := opened(t, js, limits)
	for i := range 11 {
		l.waits(t, "relay.later.in.a.jobs.n"+string(rune('a'+i)))
	}
	r := runner(js, "i", nil)
	r.cfg.Later = limits
	start(t, r)
	var failed error
	stored := 0
	for range 20 {
		if _, failed = l.Delay(t.Context(), "b", &nats.Msg{Subject: "jobs.b"}, time.Now().Add(time.Hour)); failed == nil {
			stored++
		}
	}
	if stored != 10 || !errors.Is(failed, ErrFull) || !strings.Contains(failed.Error(), "later.max_bytes") {
		t.Errorf("%d stored, %v", stored, failed)
	}
	natstest.Eventually(t, "it is said", func() bool {
		said := strings.Join(r.Troubles(), "\n")
		return strings.Contains(said, "RELAY_LATER holds 11 messages") && strings.Contains(said, "110 %") && strings.Contains(said, "no more delayed messages may wait")
	})
	if err := r.Ready(); err != nil {
		t.Errorf("publishers make relay unready: %v", err)
	}
	if n, err := l.Remove(t.Context(), "b"); err != nil || n != 1 {
		t.Errorf("%d removed, %v", n, err)
	}
	if n, err := l.Remove(t.Context(), "a"); err != nil || n != 11 {
		t.Errorf("%d removed, %v", n, err)
	}
	if _, err := l.Delay(t.Context(), "c", &nats.Msg{Subject: "jobs.c"}, time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

// Without a relay that ever ran, the error says so.
func TestDelay_withoutTheStream(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := AttachLater(js, "relay").Delay(ctx, "a", &nats.Msg{Subject: "jobs.a"}, time.Now().Add(time.Hour))
	if !errors.Is(err, ErrNoIntake) || !strings.Contains(err.Error(), "start relay once") {
		t.Error(err)
	}
	if _, err := AttachLater(js, "relay").Delay(ctx, "a", &nats.Msg{Subject: "jobs.a"}, time.Now().Add(10*366*24*time.Hour)); err == nil {
		t.Error("ten years ahead is accepted")
	}
}
