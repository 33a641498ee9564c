package program

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// I-01, I-07: an endpoint that answers 503 to every tenth request.
func TestRun_everyTenthRequestFails(t *testing.T) {
	t.Parallel()
	const (
		messages = 3000
		least    = 200 * time.Millisecond
		jitter   = 0.2
	)
	w := newWorld(t, fmt.Sprintf(`
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
    retry: {policy: exponential, min: %v, max: 10s, jitter: %v}
`, least, jitter))
	var n atomic.Uint64
	w.hook.answers(func(request) (int, string) {
		if n.Add(1)%10 == 0 {
			return 503, "try again"
		}
		return 200, ""
	})
	w.run()
	start := time.Now()
	publishMany(t, w.js, messages, func(i int) string { return fmt.Sprintf("orders.%d", i%100) })
	settled(t, w.js, "ORDERS", "billing")
	took := time.Since(start)

	starts := map[string][]request{}
	for _, r := range w.hook.all() {
		starts[r.id] = append(starts[r.id], r)
	}
	if len(starts) != messages {
		t.Errorf("%d messages delivered, want %d", len(starts), messages)
	}
	retried := 0
	var late []time.Duration
	for id, rs := range starts {
		for i, r := range rs {
			if r.attempt != strconv.Itoa(i+1) {
				t.Errorf("%s: attempt %s at start %d", id, r.attempt, i+1)
			}
			if last := i == len(rs)-1; last != (r.status == 200) {
				t.Errorf("%s: start %d of %d was answered %d", id, i+1, len(rs), r.status)
			}
			if i == 0 {
				continue
			}
			retried++
			gap, delay := r.at.Sub(rs[i-1].answered), float64(least<<(i-1))
			low, high := time.Duration(delay*(1-jitter)), time.Duration(delay*(1+jitter))
			if gap < low-50*time.Millisecond {
				t.Errorf("%s: %v between starts %d and %d, want %v to %v", id, gap, i, i+1, low, high)
			}
			late = append(late, max(0, gap-high))
		}
	}
	if n := len(deadLetters(t, w.js)); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	if retried < messages/20 {
		t.Fatalf("%d retries", retried)
	}
	// Never early. How late is a matter of the machine: internal/chaos measures it, in I07.
	slices.Sort(late)
	t.Logf("%d messages, %d retries in %v; after delay and jitter half came %v late, 99 of 100 %v, the last %v", len(starts), retried,
		took.Round(time.Millisecond), late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
}

// I-02, I-17, I-19: what cannot be handled is in the dead letters, once and whole, and a replay gets it handled, without
// anybody else noticing.
func TestRun_deadLettersAreWholeAndReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK", forward_headers: [Trace]}}
    retry: {max_attempts: 3, policy: constant, min: 50ms}
`)
	w.hook.answers(func(r request) (int, string) {
		switch r.subject {
		case "orders.rejected":
			return 422, "no such customer"
		case "orders.exhausted":
			return 500, "database is locked"
		}
		return 200, ""
	})
	w.run()
	other, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "other", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 70_000)
	for i := range body {
		body[i] = byte(i * 7)
	}
	header := nats.Header{"Trace": {"a", "b"}, "trace": {"c"}, "Nats-Msg-Id": {"order-1"}, "Relay-Attempt": {"99"}, "Empty": {""}}
	type sent struct {
		subject string
		reason  dlq.Reason
		starts  int
		error   string
		header  nats.Header
		data    []byte
	}
	all := []sent{
		{"orders.rejected", dlq.Rejected, 1, "422 Unprocessable Entity: no such customer", header, body},
		{"orders.exhausted", dlq.Exhausted, 3, "500 Internal Server Error: database is locked", nil, []byte(`{"id":2}`)},
		{"orders.fine", "", 1, "", nil, []byte("fine")},
	}
	for _, m := range all {
		w.publish(m.subject, m.data, m.header)
	}
	settled(t, w.js, "ORDERS", "billing")
	letters := map[string][]dlq.Entry{}
	for _, e := range deadLetters(t, w.js) {
		letters[e.Subject] = append(letters[e.Subject], e)
	}
	for i, m := range all {
		if m.reason == "" {
			if len(letters[m.subject]) != 0 {
				t.Errorf("%s is in the dead letters", m.subject)
			}
			continue
		}
		if len(letters[m.subject]) != 1 {
			t.Fatalf("%s: %d entries, want 1", m.subject, len(letters[m.subject]))
		}
		e := letters[m.subject][0]
		if !bytes.Equal(e.Data, m.data) || fmt.Sprint(e.Header) != fmt.Sprint(m.header) {
			t.Errorf("%s: body of %d bytes, header %v", m.subject, len(e.Data), e.Header)
		}
		if e.Reason != m.reason || e.Attempts != m.starts || !strings.Contains(e.LastError, m.error) || e.Sequence != uint64(i+1) ||
			e.Stream != "ORDERS" || e.Consumer != "billing" || e.Route != "billing" || e.FirstFailure.IsZero() || e.LastFailure.Before(e.FirstFailure) {
			t.Errorf("%s: %+v", m.subject, e)
		}
	}
	if raw := must(t, w.dir, "dlq", "show", fmt.Sprint(letters["orders.rejected"][0].StoredSequence), "--raw"); raw != string(body) {
		t.Error("dlq show --raw prints another body")
	}

	before := w.hook.count()
	w.hook.answers(nil)
	if out := must(t, w.dir, "dlq", "replay", "--yes"); !strings.Contains(out, "2 replayed") {
		t.Errorf("replay says %q", out)
	}
	natstest.Eventually(t, "both are handled", func() bool { return w.hook.count() == before+2 })
	for _, r := range w.hook.all()[before:] {
		if r.attempt != "1" || r.subject == "orders.rejected" && r.body != string(body) {
			t.Errorf("replayed as attempt %s of %s with %d bytes", r.attempt, r.subject, len(r.body))
		}
	}
	settled(t, w.js, "RELAY_RETRY", "billing--ORDERS")
	if n := len(deadLetters(t, w.js)); n != 0 {
		t.Errorf("%d dead letters left", n)
	}
	if info, err := other.Info(t.Context()); err != nil || info.NumPending != uint64(len(all)) {
		t.Errorf("another durable has %d messages, want %d (%v)", info.NumPending, len(all), err)
	}
	if n := w.hook.count(); n != before+2 {
		t.Errorf("%d requests more than wanted", n-before-2)
	}
}

// crashes runs relay again and again over one ledger, and kills it in mid-batch. A life is one process; every request says
// in a header which one it is from.
type crashes struct {
	*world
	life   int
	killed []time.Time // by life
	inHand []int       // by life: what it had started, and its server had no ack of

	mu    sync.Mutex
	acked map[inLife]time.Time
}

type inLife struct {
	life     int
	sequence uint64
}

// spawnLife starts the next life.
func (c *crashes) spawnLife() *process {
	return spawn(c.t, c.dir, nil, "run", "--set", fmt.Sprintf("routes.billing.handler.http.headers.Life=%d", c.life))
}

// listenForAcks notes every ack that the server gets: they are ordinary messages, for whoever subscribes.
func (c *crashes) listenForAcks(nc *nats.Conn) {
	c.t.Helper()
	sub, err := nc.Subscribe("$JS.ACK.ORDERS.billing.>", func(m *nats.Msg) {
		if string(m.Data) != "+ACK" {
			return
		}
		sequence, _ := strconv.ParseUint(strings.Split(m.Subject, ".")[5], 10, 64)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.acked[inLife{c.life, sequence}] = time.Now()
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// killAfter lets p start so many handlers more, kills it in the midst of them, and counts what it had in hand.
func (c *crashes) killAfter(p *process, more int, flush func()) {
	c.t.Helper()
	before := c.hook.count()
	natstest.Eventually(c.t, "handlers run", func() bool { return c.hook.count() >= before+more })
	c.killed = append(c.killed, time.Now())
	p.kill()
	// Once its connections are gone the ledger has everything that this life sent.
	natstest.Eventually(c.t, "its connections are closed", func() bool { return c.hook.connections() == 0 })
	flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for key := range c.started(c.life) {
		if _, ok := c.acked[key]; !ok {
			n++
		}
	}
	c.inHand = append(c.inHand, n)
	c.life++
}

// started is what a life had its handler called for.
func (c *crashes) started(life int) map[inLife]bool {
	started := map[inLife]bool{}
	for _, r := range c.hook.all() {
		if r.life == fmt.Sprint(life) {
			started[inLife{life, sequenceOf(r.id)}] = true
		}
	}
	return started
}

func sequenceOf(id string) uint64 {
	parts := strings.Split(id, "~") // <stream>~<consumer>~<seq>~<time>
	if len(parts) < 3 {
		return 0
	}
	n, _ := strconv.ParseUint(parts[2], 10, 64)
	return n
}

// tally looks at every message: nothing is lost, and what was started again had been in hand at a kill or, with its ack
// no older than forgiven, forgotten by a server that died too.
func (c *crashes) tally(messages int, forgiven time.Duration) {
	c.t.Helper()
	starts := map[uint64][]int{} // lives
	for _, r := range c.hook.all() {
		life, _ := strconv.Atoi(r.life)
		starts[sequenceOf(r.id)] = append(starts[sequenceOf(r.id)], life)
	}
	if len(starts) != messages {
		c.t.Errorf("%d messages handled, want %d", len(starts), messages)
	}
	inHand, forgotten := 0, 0
	var oldest time.Duration
	c.mu.Lock()
	defer c.mu.Unlock()
	for sequence, lives := range starts {
		for i := 1; i < len(lives); i++ {
			last := lives[i-1]
			if lives[i] == last {
				c.t.Errorf("%d was started twice in life %d", sequence, last)
				continue
			}
			at, ok := c.acked[inLife{last, sequence}]
			if !ok {
				inHand++
				continue
			}
			forgotten++
			oldest = max(oldest, c.killed[last].Sub(at))
		}
	}
	most := 0
	for _, n := range c.inHand {
		most += n
	}
	if inHand > most {
		c.t.Errorf("%d duplicates of what was in hand at the kills, which was %d", inHand, most)
	}
	if forgotten > 0 && oldest > forgiven {
		c.t.Errorf("an ack was %v old at the kill and is not kept, want at most %v", oldest, forgiven)
	}
	c.t.Logf("%d kills: in hand %d (%v), %d duplicates of them; %d duplicates of acked messages, the oldest ack was from %v before the kill",
		len(c.killed), most, c.inHand, inHand, forgotten, oldest.Round(time.Millisecond))
}

// F01, I-04, I-14.
func TestRun_killedTwentyTimesInMidBatch(t *testing.T) {
	t.Parallel()
	const (
		messages = 4000
		kills    = 20
	)
	c := &crashes{acked: map[inLife]time.Time{}}
	c.world = newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    ack_wait: 2s
    handler: {http: {url: "$HOOK"}}
`)
	if _, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	publishMany(t, c.js, messages, func(i int) string { return fmt.Sprintf("orders.%d", i%100) })
	c.listenForAcks(c.nc)
	c.hook.answers(func(request) (int, string) {
		time.Sleep(20 * time.Millisecond) // work, so that some is always in hand
		return 200, ""
	})
	begin := time.Now()
	for range kills {
		c.killAfter(c.spawnLife(), 150, func() { _ = c.nc.Flush() })
	}
	c.spawnLife().ready()
	settled(t, c.js, "ORDERS", "billing")
	t.Logf("all is handled %v after the last kill, and %v after the first start", time.Since(c.killed[kills-1]).Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	c.tally(messages, 0)
	if n := len(deadLetters(t, c.js)); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// The same with the server inside, which dies too: it answers acks before it has written them, whatever sync is.
func TestRun_killedWithTheEmbeddedServer(t *testing.T) {
	const (
		messages = 5_000
		kills    = 4
		// Measured: 150 ms on an idle machine, 415 ms on two busy processors with the race detector.
		forgiven = time.Second
	)
	c := &crashes{acked: map[inLife]time.Time{}}
	c.world = newWorld(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c.configure(fmt.Sprintf(`
nats: {embedded: {listen: %s, store_dir: data}}
routes:
  - name: billing
    subjects: [orders.>]
    ack_wait: 2s
    handler: {http: {url: "$HOOK"}}
`, addr))
	connect := func() *nats.Conn {
		t.Helper()
		var nc *nats.Conn
		natstest.Eventually(t, "the embedded server takes connections", func() (ok bool) {
			key, err := nats.NkeyOptionFromSeed(filepath.Join(c.dir, "data", "client.nk"))
			if err != nil {
				return false
			}
			nc, err = nats.Connect("nats://"+addr, nats.NoReconnect(), key)
			return err == nil
		})
		c.listenForAcks(nc)
		return nc
	}
	published := make(chan struct{})
	publish := sync.OnceFunc(func() { close(published) })
	defer publish()
	c.hook.answers(func(request) (int, string) {
		<-published
		time.Sleep(50 * time.Millisecond)
		return 200, ""
	})
	p := c.spawnLife().ready()
	nc := connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, messages, func(i int) string { return fmt.Sprintf("orders.%d", i%100) })
	publish()
	for range kills {
		// About a second's worth: most of what a life acked is older than what its server forgets.
		c.killAfter(p, 900, nc.Close)
		p = c.spawnLife()
		nc = connect()
	}
	defer nc.Close()
	p.ready()
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	settled(t, js, "ORDERS", "billing")
	c.tally(messages, forgiven)
}
