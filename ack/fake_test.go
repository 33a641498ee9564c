package ack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// sent is a message as it left.
type sent struct {
	at                 time.Duration // since the world began
	to, reply, payload string
}

// world is a session without a server: what it sends is kept, what it hears is made up.
type world struct {
	t       *testing.T
	s       *Session
	began   time.Time
	sub     nats.Subscription
	created time.Time // of what the server has

	mu    sync.Mutex
	wire  []sent
	down  bool // publishing fails
	links uint64
	asked int
	mute  bool // Info fails
	lost  bool // Info gets no answer
	alone bool // in a bubble
	// pending is what Info tells of it.
	pending int
}

const inbox = "_INBOX.test"

var errDown = errors.New("down")

func newWorld(t *testing.T, ackWait time.Duration) *world {
	w := &world{t: t, began: time.Now(), created: time.Unix(1_700_000_000, 0)}
	w.s = NewSession(Config{
		Inbox: inbox, Conn: w, Link: w.link, AckWait: ackWait, Info: w.info,
		Identity: Identity{StreamCreated: w.created, ConsumerCreated: w.created},
	})
	return w
}

// bubble runs f in a bubble beside the session's own loop.
func bubble(t *testing.T, ackWait time.Duration, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ackWait)
		w.alone = true
		w.run(func() {
			// Ticks of the session fall on full tenths of a second; the test looks between them.
			time.Sleep(time.Millisecond)
			f(w)
		})
	})
}

// run calls f beside the session's own loop, and ends that.
func (w *world) run(f func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.s.Run(ctx) })
	f()
	cancel()
	running.Wait()
}

func (w *world) Publish(to string, payload []byte) error { return w.PublishRequest(to, "", payload) }

func (w *world) PublishRequest(to, reply string, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return errDown
	}
	w.wire = append(w.wire, sent{time.Since(w.began), to, reply, string(payload)})
	return nil
}

func (w *world) link() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.links
}

// reconnect is what a new connection means to the session.
func (w *world) reconnect() {
	w.set(func() { w.links++ })
	w.s.Reconnected()
}

func (w *world) info(ctx context.Context) (Info, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if w.lost {
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return Info{}, ctx.Err()
	}
	if w.mute {
		return Info{}, errDown
	}
	return Info{Identity: Identity{StreamCreated: w.created, ConsumerCreated: w.created}, AckPending: w.pending}, nil
}

// set changes something once all that was begun is done.
func (w *world) set(f func()) {
	if w.alone {
		synctest.Wait()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// taken is what was sent since it was last called.
func (w *world) taken() []sent {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.wire
	w.wire = nil
	return list
}

// one is the only thing that was sent.
func (w *world) one(payload string) sent {
	w.t.Helper()
	list := w.taken()
	if len(list) != 1 || list[0].payload != payload {
		w.t.Fatalf("sent %v, want one %s", list, payload)
	}
	return list[0]
}

func (w *world) nothing() {
	w.t.Helper()
	if list := w.taken(); len(list) != 0 {
		w.t.Fatalf("sent %v, want nothing", list)
	}
}

func reply(seq uint64, n int, stored time.Time) string {
	return fmt.Sprintf("$JS.ACK.ORDERS.billing.%d.%d.%d.%d.0", n, seq, seq, stored.UnixNano())
}

var storedAt = time.Unix(1_700_000_100, 0)

// arrive is the nth delivery of a message; nil when it is not handed out.
func (w *world) arrive(seq uint64, n int) *Delivery {
	w.t.Helper()
	d, err := w.s.Receive(&nats.Msg{Subject: "orders", Sub: &w.sub, Reply: reply(seq, n, storedAt), Data: []byte("body")})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) confirm(m sent) { w.s.Reply(&nats.Msg{Subject: m.reply}) }

// confirmAll answers everything that is sent, for as long as that takes.
func (w *world) confirmAll(d time.Duration) (list []sent) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, m := range w.taken() {
			list = append(list, m)
			w.confirm(m)
		}
	}
	return list
}

func (w *world) refuse(m sent) {
	w.s.Reply(&nats.Msg{Subject: m.reply, Header: nats.Header{"Status": {"503"}}})
}

// check wants what a settlement returned, and has it leave.
func (w *world) check(got, want error) {
	w.t.Helper()
	if w.alone {
		synctest.Wait()
	}
	if !errors.Is(got, want) {
		w.t.Fatalf("returned %v, want %v", got, want)
	}
}

// away gives d back for that time.
func (w *world) away(d *Delivery, after time.Duration) *Away {
	w.t.Helper()
	a, err := d.NakAway(time.Now().Add(after))
	w.check(err, nil)
	return a
}

// stats compares the counters that are named in want, in Go's own notation.
func (w *world) stats(want string) {
	w.t.Helper()
	if w.alone {
		synctest.Wait()
	}
	have := fmt.Sprintf("%+v", w.s.Stats())
	for _, f := range strings.Fields(want) {
		if !strings.Contains(have, f+" ") && !strings.Contains(have, f+"}") {
			w.t.Fatalf("counters are %s, want %s", have, want)
		}
	}
}

type told func()

func (f told) Confirmed() { f() }
func (told) Free()        {}
