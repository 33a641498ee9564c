package chaos

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md: what messages may hold. Half of each corpus is handled, half is refused and goes to the dead
// letters, whole: the handler of relay answers by subject.

// corpus publishes the messages to t.ok… and t.dead…, and checks that each arrived whole.
func corpus(t *testing.T, w *World, msgs []*nats.Msg) {
	t.Helper()
	h := simple(w)
	// Two routes: the second one's handler says dead to everything.
	dead := h.URL("dead")
	r1 := w.StartRelay("r1", h, RelayConfig{Routes: []M{
		{"name": "work", "subjects": []string{"t.>"}, "start": "all", "ack_wait": "2s", "timeout": "5s",
			"handler": M{"http": M{"url": dead}}, "supervisor": M{"trip_after": 0, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}}},
	}})
	_ = r1
	sums := make(map[uint64]*nats.Msg)
	refused := 0
	for _, m := range msgs {
		p, err := w.Publish(m)
		if err != nil {
			refused++ // by the client or the server: it never reached relay
			w.Note("not published: %.60q: %v", m.Subject, err)
			continue
		}
		sums[p.Seq] = m
	}
	pid := r1.Pid()
	r := w.Check(Expect{Within: 20 * time.Second, MaxAttempts: 1, Each: true})
	if code, ended := r1.Wait(0); ended || r1.Pid() != pid {
		t.Errorf("I-24: relay ended with %d", code)
	}
	if n := strings.Count(r1.LogText(), "disconnected from NATS"); n > 0 {
		t.Errorf("I-24: disconnected %d times", n)
	}
	for i, line := range strings.Split(strings.TrimSpace(r1.LogText()), "\n") {
		if !strings.HasPrefix(line, "{") || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' }) {
			t.Errorf("S-45: line %d of the log: %.80q", i, line)
		}
	}
	letters := w.Letters()
	whole := 0
	for _, l := range letters {
		m := sums[l.Sequence]
		if m == nil {
			t.Errorf("dead letter of a message nobody published: %d", l.Sequence)
			continue
		}
		if sha256.Sum256(l.Data) != sha256.Sum256(m.Data) || l.Subject != m.Subject {
			t.Errorf("I-17: %.60q: body or subject differ (%d bytes, %d published)", m.Subject, len(l.Data), len(m.Data))
			continue
		}
		if why := headersDiffer(m.Header, l.Header); why != "" {
			t.Errorf("I-17: %.60q: %s", m.Subject, why)
			continue
		}
		whole++
	}
	if whole != len(sums) {
		t.Errorf("I-17: %d of %d dead letters are whole", whole, len(sums))
	}
	if ready, why := r1.Ready(); !ready {
		t.Errorf("I-24: not ready afterwards: %s", why)
	}
	w.Figure("%d hostile messages (%d more refused by NATS itself): 0 exits, 0 disconnects, %d of %d dead letters whole, %d starts", len(sums), refused, whole, len(sums), r.Starts)
}

// headersDiffer compares what was published with what a dead letter holds; Nats-Msg-Id and the like are kept too.
func headersDiffer(want, got nats.Header) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if k == "Nats-Request-Info" {
			continue // nats-server takes it off (CVE-2026-33246)
		}
		// nats.go turns CR and LF into spaces and trims on sending.
		var sent []string
		for _, v := range want[k] {
			sent = append(sent, strings.TrimSpace(strings.NewReplacer("\r", " ", "\n", " ").Replace(v)))
		}
		if !slices.Equal(sent, got[k]) {
			return fmt.Sprintf("header %.40q: %d values %.60q, published %d %.60q", k, len(got[k]), fmt.Sprint(got[k]), len(sent), fmt.Sprint(sent))
		}
	}
	return ""
}

const maxPayload = 1 << 20

func TestF78_bodies(t *testing.T) {
	var msgs []*nats.Msg
	for _, n := range []int{maxPayload, maxPayload - 1, maxPayload - 64, maxPayload - 4096, maxPayload - 70_000, 0, 1} {
		msgs = append(msgs, &nats.Msg{Subject: "t.body", Data: bytes.Repeat([]byte("b"), n)})
	}
	for range of(1, 30) {
		msgs = append(msgs, &nats.Msg{Subject: "t.body", Data: bytes.Repeat([]byte("c"), maxPayload)})
	}
	corpus(t, begin(t), msgs)
}

func TestF79_headers(t *testing.T) {
	var msgs []*nats.Msg
	add := func(h nats.Header) {
		msgs = append(msgs, &nats.Msg{Subject: "t.header", Data: []byte("x"), Header: h})
	}
	add(nats.Header{"Big": {strings.Repeat("v", 64<<10-64)}})
	many := nats.Header{}
	for range 20_000 / 2 {
		many.Add("A", "")
	}
	add(many)
	var values []string
	for range 5000 {
		values = append(values, "v")
	}
	add(nats.Header{"V": values})
	add(nats.Header{strings.Repeat("K", 60_000): {"v"}})
	add(header("Empty", ""))
	add(header("Nul", "a\x00b"))
	add(header("Latin", "caf\xe9", "Emoji", "🙂"))
	add(nats.Header{"dup": {"1"}, "Dup": {"2"}, "DUP": {"3"}})
	add(header("Crlf", "a\r\nInjected: yes", "Spaces", "  a  "))
	add(header("Host", "evil", "Transfer-Encoding", "chunked", "Content-Length", "0", "Authorization", "x", "Connection", "close"))
	corpus(t, begin(t), msgs)
}

func TestF80_subjects(t *testing.T) {
	w := begin(t)
	var msgs []*nats.Msg
	for _, s := range []string{
		"t." + strings.Repeat("s", 3998), "t." + strings.Repeat("s", 4030), "t." + strings.Repeat("s", 4050),
		"t" + strings.Repeat(".a", 200), "t.*", "t.>", "t.*.x", "t.nul\x00x", "t.esc\x1b[31mred", "t.\xff\xfe", "t.\u2028", "t.\u202e", "t.🙂",
		"t.<script>alert(1)</script>", "t.$(id)", "t.'\";", "t.`id`", "t.${HOME}", "t.%s%n", "t.{2}", "t.\\", "t.#", "t.?a=b&c", "t.../..", "t._",
	} {
		msgs = append(msgs, &nats.Msg{Subject: s, Data: []byte("x")})
	}
	corpus(t, w, msgs)
}

func TestF81_contents(t *testing.T) {
	var msgs []*nats.Msg
	for _, b := range [][]byte{
		nil, bytes.Repeat([]byte("{"), maxPayload), []byte(strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)),
		[]byte("\xff\xfe\xfd"), {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}, []byte("\r\n\r\nPING\r\n"), []byte("MSG x 1 1\r\n"),
	} {
		msgs = append(msgs, &nats.Msg{Subject: "t.content", Data: b})
	}
	corpus(t, begin(t), msgs)
}

// F82, F83, F85: headers and replies that pretend to be somebody's.
func TestF82_forged(t *testing.T) {
	w := begin(t)
	var msgs []*nats.Msg
	for _, h := range []nats.Header{
		header("Relay-Attempts", "19", "Relay-Replay", "5"), header("Relay-Route", "other", "Relay-Sequence", "1", "Relay-Format", "1"),
		header("Relay-Deadline", "no time"), header("Relay-Id", "forged"), header("Relay-Attempt", "99"),
		header("Nats-Request-Info", `{"acc":"x"}`), header("webhook-id", "x", "webhook-signature", "y"),
		header("Nats-Schedule-Next", "purge"), header("Status", "503"), header("Status", "100", "Description", "Idle Heartbeat"),
		header("Relay-Body", strings.Repeat("a", 64), "Relay-Body-SHA256", strings.Repeat("b", 64), "Relay-Body-Size", "3"),
	} {
		msgs = append(msgs, &nats.Msg{Subject: "t.forged", Data: []byte("x"), Header: h})
	}
	corpus(t, w, msgs)
}

// F84: messages that the stream itself removes while they are in flight or wait for their retry.
func TestF84_expired(t *testing.T) {
	w := begin(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream(func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true; c.AllowRollup = true })
	h := w.StartHandler("")
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s", "retry": M{"max_attempts": 5, "min": "2s", "max": "2s", "jitter": 0}}})
	n := of(30, 300)
	for i := range n {
		// Gone after a second: a third runs just then, a third waits for its retry, a third is done long before.
		s := ledger.Script{ID: fmt.Sprintf("x%d", i), Do: []string{"ok", "fail", "ok"}[i%3], Sleep: []int{1800, 10, 10}[i%3]}
		if _, err := w.Publish(&nats.Msg{Subject: fmt.Sprintf("t.%d", i), Data: s.Body(), Header: header("Nats-TTL", "1s")}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		s := ledger.Script{ID: fmt.Sprintf("r%d", i), Sleep: 500}
		if _, err := w.Publish(&nats.Msg{Subject: "t.rolled", Data: s.Body(), Header: header("Nats-Rollup", "sub")}); err != nil {
			t.Fatal(err)
		}
	}
	w.Produce(Load{Count: 50})
	r := w.Check(Expect{Within: 15 * time.Second, MaxAttempts: 5, Each: true, GoneOK: func(p *Pub) bool {
		return strings.HasPrefix(p.Script.ID, "x") || strings.HasPrefix(p.Script.ID, "r")
	}, Tolerate: []Class{Misplaced}})
	if code, ended := r1.Wait(0); ended {
		t.Errorf("relay ended with %d", code)
	}
	if ready, why := r1.Ready(); !ready {
		t.Errorf("not ready: %s", why)
	}
	w.Figure("%d messages expired while in flight or waiting: no error, the others handled, %d duplicates; at rest after %v", n, r.Duplicates, r.RestAfter.Round(ms))
}

// F85: the same message id twice, within the window and as another message.
func TestF85_sameID(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{})
	n := of(50, 1000)
	for i := range n {
		for j := range 2 {
			s := ledger.Script{ID: fmt.Sprintf("d%d-%d", i, j)}
			if i%5 == 0 {
				s.Do = "dead"
			}
			m := &nats.Msg{Subject: "t.same", Data: s.Body(), Header: header("Nats-Msg-Id", fmt.Sprintf("id%d", i))}
			if _, err := w.Publish(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := w.Check(Expect{})
	if r.Starts != n {
		t.Errorf("F85: %d starts of %d messages", r.Starts, n)
	}
	w.Figure("%d ids published twice: %d starts, %d dead letters, %d duplicates", n, r.Starts, r.Dead, r.Duplicates)
}

// F83: a message with a reply subject: relay must never answer it.
func TestF83_reply(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{})
	sub, err := w.nc.SubscribeSync("answers.>")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		s := ledger.Script{ID: fmt.Sprintf("a%d", i), Do: []string{"ok", "fail", "dead"}[i%3]}
		// Core publishes: the stream's own PubAck goes to the reply subject, once each.
		if err := w.nc.PublishRequest("t.reply", fmt.Sprintf("answers.%d", i), s.Body()); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.pubs = append(w.pubs, &Pub{Script: s, Subject: "t.reply", Stream: "T", Seq: uint64(i + 1), Sum: sha256.Sum256(s.Body())})
		w.mu.Unlock()
	}
	time.Sleep(200 * ms)
	r := w.Check(Expect{})
	n, _, err := sub.Pending()
	if err != nil || n != 20 {
		t.Errorf("F83: %d answers (%v), want the 20 of the stream", n, err)
	}
	w.Figure("20 messages with a reply subject, %d starts: 0 answers by relay", r.Starts)
}
