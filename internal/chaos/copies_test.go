package chaos

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// A message that fails waits in two ways: as a delayed NAK in its durable, or parked as a copy in the retry stream, with the original
// acked. When that ack is lost the original comes again, beside its copy. Whatever comes again, a message has one count of attempts.

// copiesKinds move the leaders of all that a copy depends on, as often as anything else happens.
var copiesKinds = append(slices.Clone(fleetKinds), kind{"step-down of the retries", 10, func(n *nemesis) {
	of := [][2]string{{"T", "work"}, {"RELAY_RETRY", ""}, {"RELAY_RETRY", "work--T"}, {"KV_RELAY_ATTEMPTS", ""}}[n.w.Rand.IntN(4)]
	n.w.StepDown(of[0], of[1])
}})

// copies runs three instances on three servers beside a nemesis, with messages of which 12 % fail for ever.
func copies(w *World, l fleetLoad, retry M) {
	w.T.Helper()
	l.kinds = copiesKinds
	l.script = oneInEight
	all := M{"max_attempts": 12, "jitter": 0.2}
	maps.Copy(all, retry)
	l.set("retry", all)
	f := w.fleet(l)
	f.run(l)
	r := w.Check(Expect{Within: of(2*time.Minute, 5*time.Minute), MaxAttempts: 12, Each: true})
	w.Figure("retry %v, %d instances on 3 servers, %d messages, faults: %s: %d dead letters, %d of them started more than 12 times, %d times at most, none more often than once for each fault that hit it; %d duplicates ≤ %d; at rest after %v",
		retry, l.instances, r.Published, f.nemesis, r.Dead, r.Beyond, r.Most, r.Duplicates, r.Bound, r.RestAfter.Round(ms))
}

// oneInEight has 12 % of the messages fail for ever.
func oneInEight(i int) ledger.Script {
	if i%25 < 3 {
		return ledger.Script{Do: "fail", Sleep: 5}
	}
	return ledger.Script{Sleep: i * 7 % 40}
}

func copiesLoad() fleetLoad {
	return of(fleetLoad{instances: 3, count: 500, rate: 60, faults: 5, takes: 40}, fleetLoad{instances: 3, count: 7000, rate: 100, faults: 35, takes: 40})
}

// All that fails is parked, from its first failure on: there is no record of it.
func TestCopies_parked(t *testing.T) {
	copies(begin(t), copiesLoad(), M{"min": "150ms", "max": "500ms", "park_after": "50ms"})
}

// The first attempts wait as NAKs with a record, the later ones parked.
func TestCopies_nakedThenParked(t *testing.T) {
	copies(begin(t), copiesLoad(), M{"min": "50ms", "max": "600ms", "park_after": "300ms"})
}

// None is parked.
func TestCopies_naked(t *testing.T) {
	copies(begin(t), copiesLoad(), M{"min": "50ms", "max": "600ms"})
}

// Instances die when they have parked a message and not acknowledged it. The original comes again after its ack wait, while its copy waits, runs, or
// is dead already.
func TestCopies_killedBeforeTheAck(t *testing.T) { killedBeforeTheAck(begin(t), of(4, 25)) }

func killedBeforeTheAck(w *World, kills int) {
	w.T.Helper()
	w.StartNATS(NATSConfig{Replicas: 3})
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	bin := weakRelay(w.T)
	conf := func(i int) RelayConfig {
		return RelayConfig{Binary: bin, URL: w.nats.Nodes[i%3].url(), Route: M{"retry": M{
			"max_attempts": 12, "min": "150ms", "max": []string{"150ms", "400ms"}[w.Rand.IntN(2)], "jitter": 0.2, "park_after": "50ms",
		}}}
	}
	w.StartRelay("r1", h, conf(0))
	w.StartRelay("r2", h, conf(1))
	stop := make(chan struct{})
	wait := background(func() {
		w.Produce(Load{Count: 1 << 30, Rate: of(60, 100), Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%40) }, Script: oneInEight})
	})
	for i := range kills {
		c := conf(2)
		c.NoWait, c.Env = true, []string{fmt.Sprintf("CHAOS_KILL_AT=parked:%d", 1+w.Rand.IntN(20))}
		r := w.StartRelay(fmt.Sprintf("dies%d", i+1), h, c)
		if code, ended := r.Wait(30 * time.Second); !ended || code != 128+9 {
			w.T.Fatalf("relay parked nothing (exit %d, ended %v)", code, ended)
		}
		w.fault("killed with a message parked and not acknowledged", time.Now(), w.InFlight()).Crash = true
		w.Done(r.Proc)
		time.Sleep(w.Between(0, of(time.Second, 3*time.Second)))
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute, MaxAttempts: 12, Each: true})
	w.Figure("killed %d times with a message parked and not acknowledged, 3 instances on 3 servers, %d messages: %d dead letters, %d of them started more than 12 times, %d times at most; %d duplicates ≤ %d",
		kills, r.Published, r.Dead, r.Beyond, r.Most, r.Duplicates, r.Bound)
}
