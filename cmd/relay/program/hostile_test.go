package program

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/nats-io/nats.go"
)

// odd are messages that stress whatever reads them. F78 to F81.
func odd() (list []nats.Msg) {
	add := func(subject string, header nats.Header, data []byte) {
		list = append(list, nats.Msg{Subject: subject, Header: header, Data: data})
	}
	for _, s := range []string{
		"*", "a.*", "a.>", "\x00", "\x1b[31mred", "\xff\xfe", "\u2028", "\u202egnp.exe", "🦑", "<script>alert(1)</script>", "$(id)", "`id`",
		"'\";", "%s%n", "%2e%2e%2fetc", "-rf", "{1}", "${HOME}", "$SYS.x", "_INBOX.x", strings.Repeat("a.", 199) + "a",
		strings.Repeat("x", 3900), strings.Repeat("x", 4000),
	} {
		add(s, nil, []byte("x"))
	}
	many := nats.Header{}
	for range 5000 {
		many.Add("Many", "v")
	}
	for _, h := range []nats.Header{
		{"Empty": {""}}, {"Twice": {"a", "b"}, "twice": {"c"}, "TWICE": {"d"}}, {"Nul": {"a\x00b"}}, {"Latin": {"caf\xe9"}}, {"Emoji": {"🦑"}},
		{"Host": {"evil.example"}, "Transfer-Encoding": {"chunked"}, "Content-Length": {"7"}, "Connection": {"close"}},
		{"Relay-Attempt": {"99"}, "Relay-Id": {"forged"}, "Relay-Reason": {"forged"}, "Relay-Deadline": {"no time"}, "Relay-Reply-To": {"$JS.API.STREAM.DELETE.ORDERS"}},
		{strings.Repeat("K", 60_000): {"v"}}, {"Big": {strings.Repeat("v", 60_000)}}, many, {"Content-Type": {"text/html; charset=\"\x01"}},
		{"LD_PRELOAD": {"/tmp/x"}, "() { :;}": {"x"}},
	} {
		add("headers", h, []byte("x"))
	}
	for _, b := range [][]byte{
		nil, bytes.Repeat([]byte("{"), 1<<20), bytes.Repeat([]byte("[1,"), 10_000), {0xff, 0xfe, 0xfd}, {0x1f, 0x8b, 8, 0}, {0},
		bytes.Repeat([]byte{'x'}, 1<<20-100), // with its subject and headers: at max_payload
	} {
		add("bodies", nil, b)
	}
	return list
}

// I-24, I-17: no message disconnects relay or ends it, and every one arrives, or is in the dead letters, as it was.
func TestRun_hostileMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.configure(fmt.Sprintf(`
nats: {url: "%s"}
routes:
  - {name: discard, subjects: [orders.discard.>], handler: discard}
  - {name: hook, subjects: [orders.hook.>], handler: {http: {url: "$HOOK", forward_headers: [Twice, Nul, Big, Many, Latin]}}}
  - {name: dead, subjects: [orders.dead.>], handler: {http: {url: "$HOOK"}}, supervisor: {dead_trip: {of: 0}}}
`, w.s.URL()))
	w.hook.answers(func(r request) (int, string) {
		if strings.HasPrefix(r.subject, "orders.dead.") {
			return 422, "\x1b[31mno\x00 such \u202ecustomer\xff"
		}
		return 200, ""
	})
	p := w.run()
	messages := odd()
	stored := map[string]int{}
	sent := map[uint64]nats.Msg{} // by sequence
	for _, route := range []string{"discard", "hook", "dead"} {
		for _, m := range messages {
			m.Subject = "orders." + route + "." + m.Subject
			ack, err := w.js.PublishMsg(t.Context(), &m)
			if err != nil {
				if w.nc.IsClosed() {
					t.Fatalf("the test's own connection is closed by %.40q: %v", m.Subject, err)
				}
				t.Logf("%.40q cannot be published: %v", m.Subject, err)
				continue
			}
			sent[ack.Sequence] = m
			stored[route]++
		}
	}
	if stored["dead"] < len(messages)-2 {
		t.Fatalf("only %d of %d odd messages could be stored", stored["dead"], len(messages))
	}
	for _, durable := range []string{"discard", "hook", "dead"} {
		settled(t, w.js, "ORDERS", durable)
	}
	handled := map[string]bool{}
	for _, r := range w.hook.all() {
		if r.status == 200 {
			handled[r.id] = true
		}
	}
	letters := deadLetters(t, w.js)
	if len(handled)+len(letters)+stored["discard"] != len(sent) {
		t.Errorf("%d handled, %d discarded and %d dead of %d", len(handled), stored["discard"], len(letters), len(sent))
	}
	if len(letters) != stored["dead"] {
		t.Errorf("%d dead letters, want %d", len(letters), stored["dead"])
	}
	seen := map[uint64]bool{}
	for _, e := range letters {
		m, ok := sent[e.Sequence]
		if !ok || seen[e.Sequence] || e.Subject != m.Subject || !bytes.Equal(e.Data, m.Data) || len(e.Header) != len(m.Header) {
			t.Errorf("%d: entry of %.40q, %d bytes, %d headers; sent %.40q, %d bytes, %d headers", e.Sequence, e.Subject, len(e.Data), len(e.Header), m.Subject, len(m.Data), len(m.Header))
		}
		seen[e.Sequence] = true
		for name, values := range m.Header {
			// The library makes spaces of what a header cannot hold at its ends; all else is as it was.
			if strings.Join(e.Header[name], "|") != strings.Join(values, "|") {
				t.Errorf("%d: header %.40q is %.80q, not %.80q", e.Sequence, name, e.Header[name], values)
			}
		}
	}
	for _, gone := range []string{"disconnected from NATS", "connected to NATS again"} {
		if n := len(p.logged(gone)); n > 0 {
			t.Errorf("relay was disconnected: %v", p.logged(gone)[0])
		}
	}
	// Shown without acting on the terminal, and logged without control bytes.
	show := func(what, out string, bad func(r rune) bool) {
		if i := strings.IndexFunc(out, bad); i >= 0 {
			t.Errorf("%s holds a control character: %q", what, out[max(0, i-40):min(len(out), i+40)])
		}
	}
	control := func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }
	show("dlq ls", must(t, w.dir, "dlq", "ls"), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
	show("the log", p.err.String(), control)
	if status, body := p.get("/readyz"); status != 200 {
		t.Errorf("not ready: %s", body)
	}
}
