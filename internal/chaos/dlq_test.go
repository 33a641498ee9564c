package chaos

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md: dead letters.

// hopeless messages: every other one is refused by its handler.
func hopeless(ms int) func(int) ledger.Script {
	return func(i int) ledger.Script {
		if i%2 == 0 {
			return ledger.Script{Do: "dead", Sleep: ms}
		}
		return ledger.Script{Sleep: ms}
	}
}

// F88: the stream of the dead letters is deleted while relay runs.
func TestF88_deadLettersDeleted(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{})
	w.must("delete RELAY_DLQ", func(ctx context.Context) error { return w.js.DeleteStream(ctx, "RELAY_DLQ") })
	w.Note("RELAY_DLQ deleted")
	n := of(60, 1000)
	w.Produce(Load{Count: n, Script: hopeless(5)})
	said, ok := w.Within(10*time.Second, func() bool { ready, why := r1.Ready(); return !ready && contains(why, "dead") })
	if !ok {
		t.Errorf("I-18: missing dead letters do not show in readiness after %v", said)
	}
	w.Eventually(10*time.Second, "the healthy ones are handled", func() bool { return w.Ends() >= n/2 })
	// relay makes the stream when it starts; whoever deleted it may do that too.
	w.must("make RELAY_DLQ", func(ctx context.Context) error {
		_, err := w.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: "RELAY_DLQ", Subjects: []string{"relay.dlq.>"}, AllowDirect: true, Discard: jetstream.DiscardNew,
		})
		return err
	})
	w.Note("RELAY_DLQ is there again")
	at := time.Now()
	r := w.Check(Expect{Within: 75 * time.Second})
	heal := time.Since(at)
	if heal > 10*time.Second {
		t.Errorf("I-18: it took %v after the stream was back, want ≤ 10s", heal)
	}
	w.Figure("dead letters deleted under load: unready after %v, 0 lost of %d; all %d stored %v after the stream was back", said.Round(ms), r.Published, r.Dead, heal.Round(ms))
}

// F89: another stream takes the subjects.
func TestF89_wrongStream(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{})
	w.must("another stream takes relay.dlq.>", func(ctx context.Context) error {
		if err := w.js.DeleteStream(ctx, "RELAY_DLQ"); err != nil {
			return err
		}
		_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: "STRANGER", Subjects: []string{"relay.dlq.>"}})
		return err
	})
	w.Note("STRANGER has relay.dlq.>")
	n := of(40, 400)
	w.Produce(Load{Count: n, Script: hopeless(5)})
	if said, ok := w.Within(10*time.Second, func() bool { ready, why := r1.Ready(); return !ready && contains(why, "dead") }); !ok {
		t.Errorf("I-18: a foreign stream does not show in readiness after %v", said)
	}
	time.Sleep(500 * ms)
	if left := w.InFlight(); left < n/2 {
		t.Errorf("I-18: %d messages wait, want the %d without a home", left, n/2)
	}
	w.must("put it right", func(ctx context.Context) error {
		_ = w.js.DeleteStream(ctx, "STRANGER")
		_, err := w.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: "RELAY_DLQ", Subjects: []string{"relay.dlq.>"}, AllowDirect: true, Discard: jetstream.DiscardNew,
		})
		return err
	})
	r := w.Check(Expect{Within: 75 * time.Second})
	w.Figure("dead letters into the wrong stream: 0 of %d lost, 0 acked without a home; %d stored afterwards", r.Published, r.Dead)
}

// F28 and F89: the permission to publish dead letters is taken away by a reload.
func TestF89_permissionRevoked(t *testing.T) {
	w := begin(t)
	auth := `
authorization {
  users: [
    {user: harness, password: h}
    {user: relay, password: r, permissions: {publish: {deny: [DENIED]}}}
  ]
}
`
	w.StartNATS(NATSConfig{Extra: strings.Replace(auth, "DENIED", `"nothing.at.all"`, 1)})
	w.nats.user = "harness:h@"
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	r1 := w.StartRelay("r1", h, RelayConfig{Top: M{"nats": M{"url": w.nats.Nodes[0].url(), "user": "relay", "password": "r"}}})
	node := w.nats.Nodes[0]
	node.Reload(func(conf string) string { return strings.Replace(conf, `"nothing.at.all"`, `"relay.dlq.>"`, 1) })
	time.Sleep(300 * ms)
	w.Cut("permission revoked")
	n := of(40, 400)
	w.Produce(Load{Count: n, Script: hopeless(5)})
	said, ok := w.Within(12*time.Second, func() bool { ready, why := r1.Ready(); return !ready && contains(why, "dead") })
	if !ok || said > 10*time.Second {
		t.Errorf("F28: the revoked permission does not show in readiness after %v", said)
	}
	node.Reload(func(conf string) string { return strings.Replace(conf, `"relay.dlq.>"`, `"nothing.at.all"`, 1) })
	w.Cut("permission granted")
	at := time.Now()
	r := w.Check(Expect{Within: 90 * time.Second})
	w.Figure("permission for dead letters revoked: unready after %v, 0 lost of %d; all %d stored %v after it was granted", said.Round(ms), r.Published, r.Dead, time.Since(at).Round(ms))
}

// F90: relay is killed again and again while it writes dead letters. Failpoints would hit the step itself; here the kill
// comes at a random moment of a burst in which hardly anything else happens.
func TestF90_killAtDeadLetters(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}})
	n := of(600, 10_000)
	wait := background(func() {
		w.Produce(Load{Count: n, Rate: of(600, 500), Script: func(int) ledger.Script { return ledger.Script{Do: "dead"} }})
	})
	kills := of(4, 60)
	for range kills {
		time.Sleep(w.Between(50*ms, 300*ms))
		w.KillRelay(r1)
		r1.Start()
		r1.WaitReady(10 * time.Second)
	}
	wait()
	r := w.Check(Expect{Within: time.Minute, ExtraStarts: kills})
	if r.Dead != r.Published+r.Recovered {
		t.Errorf("I-02: %d dead letters of %d messages", r.Dead, r.Published+r.Recovered)
	}
	w.Figure("%d kills during %d dead letters: each stored once, 0 lost", kills, r.Dead)
}

// F91: the confirmation of a dead letter is lost on its way.
func TestF91_confirmationLost(t *testing.T) {
	w := begin(t)
	h := simple(w)
	p := NewProxy(t, w.nats.Addr())
	w.StartRelay("r1", h, RelayConfig{URL: p.URL()})
	n := of(300, 5000)
	wait := background(func() {
		w.Produce(Load{Count: n, Rate: of(300, 300), Script: func(int) ledger.Script { return ledger.Script{Do: "dead"} }})
	})
	cuts := of(3, 30)
	for range cuts {
		time.Sleep(w.Between(150*ms, 300*ms))
		p.Stall(Down) // what relay sends arrives, what it would hear does not
		time.Sleep(w.Between(20*ms, 80*ms))
		w.Cut("confirmations lost")
		p.Cut()
		p.Resume()
	}
	wait()
	r := w.Check(Expect{Within: time.Minute, ExtraStarts: cuts})
	if r.Dead != r.Published {
		t.Errorf("I-02: %d dead letters of %d messages", r.Dead, r.Published)
	}
	w.Figure("%d cuts that lose confirmations, %d dead letters: each stored once, 0 lost", cuts, r.Dead)
}

func TestF91_killBeforeConfirmation(t *testing.T) { killBeforeConfirmation(begin(t), of(1, 20)) }

// killBeforeConfirmation has relay die when its dead letters are stored and it has not heard of it.
func killBeforeConfirmation(w *World, rounds int) {
	h := simple(w)
	p := NewProxy(w.T, w.nats.Addr())
	r1 := w.StartRelay("r1", h, RelayConfig{URL: p.URL(), Route: M{"ack_wait": "1s"}})
	const n = 60
	least := n
	stored := func() int {
		s, err := w.js.Stream(w.T.Context(), "RELAY_DLQ")
		if err != nil {
			return 0
		}
		return int(s.CachedInfo().State.Msgs)
	}
	for range rounds {
		before, had := w.Starts(), stored()
		w.Produce(Load{Count: n, Script: func(int) ledger.Script { return ledger.Script{Do: "dead", Sleep: 400} }})
		w.Eventually(5*time.Second, "handlers run", func() bool { return w.Starts() >= before+n })
		p.Stall(Down) // what relay sends arrives, what it would hear does not
		// As many as relay stores at once; the others wait for theirs.
		w.Eventually(5*time.Second, "dead letters are stored while relay hears nothing", func() bool { return stored() >= had+n/3 })
		least = min(least, stored()-had)
		w.KillRelay(r1)
		p.Cut()
		p.Resume()
		r1.Start()
		r1.WaitReady(10 * time.Second)
		w.Eventually(20*time.Second, "rest", func() bool { return w.rest().done() })
	}
	r := w.Check(Expect{ExtraStarts: 1})
	if r.Dead != r.Published {
		w.T.Errorf("I-02: %d dead letters of %d messages", r.Dead, r.Published)
	}
	w.Figure("relay killed %d times with at least %d dead letters stored and unconfirmed: %d dead letters of %d messages", rounds, least, r.Dead, r.Published)
}

// F92: two instances hold the same message, and both find it hopeless.
func TestF92_twoInstances(t *testing.T) {
	w := begin(t)
	h := simple(w)
	route := M{"ack_wait": "1s"}
	r1 := w.StartRelay("r1", h, RelayConfig{Route: route})
	n := 60
	w.Produce(Load{Count: n, Script: func(int) ledger.Script { return ledger.Script{Do: "dead", Sleep: 900} }})
	w.Eventually(5*time.Second, "handlers run on r1", func() bool { return w.Starts() >= n })
	w.StartRelay("r2", h, RelayConfig{Route: route, NoWait: true})
	if running := w.Running(); running < n {
		t.Fatalf("only %d of %d handlers run at the pause: the machine is too slow for this row", running, n)
	}
	w.Pause(r1.Proc, 2500*ms)
	r := w.Check(Expect{Within: 20 * time.Second, ExtraStarts: 2})
	if r.Dead != n {
		t.Errorf("I-02: %d dead letters of %d messages", r.Dead, n)
	}
	w.Figure("two instances with the same %d hopeless messages: %d dead letters", n, r.Dead)
}

// F95 and a part of F93: replay while relay is killed; another durable of the stream sees nothing of it.
func TestF95_replay(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}})
	n := of(40, 1000)
	w.Produce(Load{Count: n, Script: func(int) ledger.Script { return ledger.Script{Do: "dead", Once: true} }})
	w.Eventually(20*time.Second, "dead letters", func() bool { return len(w.Letters()) == n })
	other, err := w.js.CreateConsumer(t.Context(), "T", jetstream.ConsumerConfig{Durable: "other", AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverNewPolicy})
	if err != nil {
		t.Fatal(err)
	}
	before := w.Starts()
	cli := w.startProc("replay", procOptions{}, w.Bin.Relay, "dlq", "replay", "--yes", "-c", r1.conf)
	w.Eventually(10*time.Second, "a replayed message is started", func() bool { return w.Starts() > before })
	time.Sleep(w.Between(0, 50*ms))
	w.KillRelay(r1)
	r1.Start()
	if code, ok := cli.Wait(30 * time.Second); !ok || code != 0 {
		t.Logf("replay ended with %d (%v): %s", code, ok, tail(cli.LogText(), 5))
		cli = w.startProc("replay2", procOptions{}, w.Bin.Relay, "dlq", "replay", "--yes", "-c", r1.conf)
		if code, ok := cli.Wait(30 * time.Second); !ok || code != 0 {
			t.Errorf("replay: exit %d (%v): %s", code, ok, tail(cli.LogText(), 5))
		}
	}
	r := w.Check(Expect{Within: 30 * time.Second, Replayed: true})
	info, err := other.Info(t.Context())
	if err != nil || info.NumPending != 0 {
		t.Errorf("I-19: the other durable has %d messages of the replay (%v)", info.NumPending, err)
	}
	if r.Handled != n || r.Dead != 0 {
		t.Errorf("I-19: %d of %d handled after the replay, %d left", r.Handled, n, r.Dead)
	}
	w.Figure("replay of %d with a kill of relay in the middle: %d handled, %d left, 0 seen by another durable, %d duplicates ≤ %s", n, r.Handled, r.Dead, r.Duplicates, r.Arithmetic)
}
