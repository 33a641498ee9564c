package ack

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzParseReply compares with nats.go's own reading.
func FuzzParseReply(f *testing.F) {
	f.Add("$JS.ACK.ORDERS.billing.1.2.3.1700000000000000000.4")
	f.Add("$JS.ACK.hub.hash.ORDERS.billing.1.2.3.1700000000000000000.4")
	f.Add("$JS.ACK._.hash.ORDERS.billing.12.20.30.1700000000000000000.4.rand")
	f.Add("$JS.ACK.ORDERS.billing.1.2.3.4")
	f.Add("$JS.ACK.ORDERS.billing.x.2.3.4.5")
	f.Add("$JS.ACK.a.b.c.d.e.f.g.h")
	f.Add("_INBOX.x")
	sub := &nats.Subscription{}
	f.Fuzz(func(t *testing.T, reply string) {
		have, err := parseReply(reply)
		want, wantErr := (&nats.Msg{Reply: reply, Sub: sub}).Metadata()
		if err != nil {
			if wantErr == nil && plain.MatchString(reply) {
				t.Fatalf("%q is not read: %v; nats.go: %+v", reply, err, want)
			}
			return
		}
		if wantErr != nil {
			t.Fatalf("%q is read as %+v, and by nats.go as %v", reply, have, wantErr)
		}
		if have.deliveries != want.NumDelivered || have.sequence != want.Sequence.Stream || !have.time.Equal(want.Timestamp) {
			t.Fatalf("%q is read as %+v, and by nats.go as %+v", reply, have, want)
		}
	})
}

// plain has names and numbers where they belong. What is no number, nats.go takes for some other number, and it takes an empty name.
var plain = regexp.MustCompile(`^\$JS\.ACK\.([^.]*\.[^.]*\.)?[^.]+\.[^.]+\.\d{1,19}\.\d{1,19}\.\d{1,19}\.\d{1,19}\.\d{1,19}$`)

func BenchmarkParseReply(b *testing.B) {
	reply := fmt.Sprintf("$JS.ACK.ORDERS.billing.1.%d.%d.%d.0", 123456, 123456, 1_700_000_000_000_000_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseReply(reply); err != nil {
			b.Fatal(err)
		}
	}
}
