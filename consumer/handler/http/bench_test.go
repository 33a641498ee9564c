package http

import (
	nethttp "net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
)

// One request after the other to an endpoint in the same process, whose allocations are counted too.
func BenchmarkHandle(b *testing.B) {
	s := httptest.NewServer(nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) {}))
	defer s.Close()
	h, err := New(Config{URL: s.URL}, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Stop(b.Context())
	m := &consumer.Msg{
		ID: "ORDERS_billing_1", Subject: "orders.eu", Route: "billing", Attempt: 1, Deadline: time.Now().Add(time.Hour),
		Data: make([]byte, 128),
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Handle(b.Context(), m); err != nil {
			b.Fatal(err)
		}
	}
}
