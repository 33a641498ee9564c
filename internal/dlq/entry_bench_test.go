package dlq

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// BenchmarkEntry is what a dead letter costs beside its storing: the headers of its entry, and reading them again.
func BenchmarkEntry(b *testing.B) {
	now := time.Now()
	e := Entry{
		Origin: Origin{
			Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 12345, Time: now, Subject: "orders.eu.created",
			Attempts: 20, Deliveries: 23, FirstFailure: now, LastFailure: now, LastError: "connection refused",
		},
		Header: nats.Header{"Trace-Id": {"a"}, "Nats-Msg-Id": {"m-1"}},
		Data:   make([]byte, 128), Reason: Exhausted, Instance: "host-1",
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = encode(e)
		}
	})
	b.Run("decode", func(b *testing.B) {
		h := encode(e)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decode(h); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("subject", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := entrySubject("relay.dlq", e.Origin); err != nil {
				b.Fatal(err)
			}
		}
	})
}
