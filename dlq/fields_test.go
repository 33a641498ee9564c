package dlq

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
)

// block is a header block as a server sends it.
func block(h nats.Header) []byte {
	b := []byte("NATS/1.0\r\n")
	for name, values := range h {
		for _, v := range values {
			b = append(b, name+": "+v+"\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}

// FuzzFields compares with what nats.go makes of the same bytes.
func FuzzFields(f *testing.F) {
	for _, s := range []string{
		string(block(encode(entry(1)))),
		"", "NATS/1.0", "NATS/1.0\r\n", "NATS/1.0\r\n\r\n", "nats/1.0\r\n\r\n", "NATS/1.1\r\n\r\n", "\r\n\r\n",
		"NATS/1.0 404\r\n\r\n", "NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n", "NATS/1.0  40\r\n\r\n", "NATS/1.0 \r\n\r\n",
		"NATS/1.0404No Messages \r\n\r\n", "NATS/1.0 404 \t\r\nStatus: 1\r\nDescription: 2\r\n\r\n",
		"NATS/1.0\nA: 1\n\n", "NATS/1.0\r\nA:1\nB:\t 2 \r\r\n\r\n", "NATS/1.0\r\nA: 1\r\nb: 2\r\nA: 3\r\na: 4\r\nA:\r\n\r\n",
		"NATS/1.0\r\n: 1\r\n:\r\nA:b:c\r\n\r\n", "NATS/1.0\r\nno colon\r\n\r\n", "NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n", "NATS/1.0\r\nA: 1\r\n",
		"NATS/1.0\r\nA : 1\r\n B: 2\r\n\xff\x00: \xff\r\n\r\n", "NATS/1.0\r\n\r\r\n\r\n", "NATS/1.0\r\n" + strings.Repeat("A: 1\r\n", 300) + "\r\n",
	} {
		f.Add([]byte(s), []byte("NATS/1.0\r\nA: before\r\nRelay-Reason: x\r\n\r\n"))
	}
	f.Fuzz(func(t *testing.T, now, before []byte) {
		var got fields
		got.read(before)
		got.read(now)
		want, err := nats.DecodeHeadersMsg(now)
		if err != nil {
			want = nats.Header{}
		}
		if d := cmp.Diff(want, got.header()); d != "" {
			t.Fatalf("%q: %s", now, d)
		}
		for name, values := range want {
			if d := cmp.Diff(values, got.Values(name)); d != "" {
				t.Errorf("%q: %s", name, d)
			}
		}
		for _, name := range []string{"A", "Relay-Reason", "Relay-Last-Error"} {
			if d := cmp.Diff(want.Values(name), got.Values(name), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%q: %s", name, d)
			}
		}
		o, err := ack.UnwrapOrigin(want)
		p, err2 := ack.UnwrapOrigin(&got)
		if d := cmp.Diff(o, p); d != "" || (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Errorf("%v, %v: %s", err, err2, d)
		}
	})
}

func BenchmarkHeaders(b *testing.B) {
	wire := block(encode(entry(1)))
	b.Run("nats.go", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, err := nats.DecodeHeadersMsg(wire)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := decodeWith(h, false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fields", func(b *testing.B) {
		b.ReportAllocs()
		var f fields
		for b.Loop() {
			f.read(wire)
			if _, err := decodeWith(&f, false); err != nil {
				b.Fatal(err)
			}
		}
	})
}
