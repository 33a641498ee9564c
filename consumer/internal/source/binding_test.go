package source

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/stores"
)

// shared is the durable ORDERS/shared of the routes all (orders.>) and paid (orders.*.paid).
func shared() (s *Source, all, paid *Route) {
	s = New(&Instance{Log: slog.New(slog.DiscardHandler), Stores: new(stores.Stores)}, "ORDERS", "shared")
	all, paid = &Route{Name: "all", Subjects: []string{"orders.>"}}, &Route{Name: "paid", Subjects: []string{"orders.*.paid"}}
	s.Add(all, all.Subjects...)
	s.Add(paid, paid.Subjects...)
	return s, all, paid
}

func TestBinding_theMostSpecificRouteGetsTheMessage(t *testing.T) {
	s, all, paid := shared()
	for literal, want := range map[string]*Route{"orders.eu.paid": paid, "orders.eu.sent": all, "orders.paid": all, "invoices.eu": nil} {
		if got := s.RouteOf(literal); got != want {
			t.Errorf("%s goes to %+v, want %+v", literal, got, want)
		}
	}
	if !slices.Equal(s.Names(), []string{"all", "paid"}) || !slices.Equal(s.Subjects(), []string{"orders.*.paid", "orders.>"}) || s.String() != "ORDERS/shared" {
		t.Errorf("%v, %v, %v", s.Names(), s.Subjects(), s)
	}
	if s.RouteOfPattern("orders.>") != all || s.RouteOfPattern("orders.*") != nil || !s.Serves(paid) || s.Serves(new(Route)) {
		t.Error("it does not know its routes")
	}
	if !s.MayStart() || s.Fence() != 0 {
		t.Error("a source that all instances work on needs a claim")
	}
}

// A subject that the stream does not hold can still come from another stream.
func TestBinding_unheld(t *testing.T) {
	s, all, paid := shared()
	for _, c := range []struct {
		config jetstream.StreamConfig
		want   [2]bool // of all, of paid
	}{
		{jetstream.StreamConfig{Subjects: []string{"orders.>"}}, [2]bool{}},
		{jetstream.StreamConfig{Subjects: []string{"orders.*"}}, [2]bool{false, true}},
		{jetstream.StreamConfig{Subjects: []string{"invoices.>"}}, [2]bool{true, true}},
		{jetstream.StreamConfig{Subjects: []string{"invoices.>"}, Sources: []*jetstream.StreamSource{{Name: "OTHER"}}}, [2]bool{}},
		{jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: "OTHER"}}, [2]bool{}},
	} {
		if got := [2]bool{s.unheld(c.config, all), s.unheld(c.config, paid)}; got != c.want {
			t.Errorf("%+v: %v, want %v", c.config, got, c.want)
		}
	}
}

// An edit that loses messages stops the durable. A filter that lets more pass does not: what else comes is a stray.
func TestBinding_sortsEdits(t *testing.T) {
	s, _, _ := shared()
	const filter, wait = "filter_subjects is orders.eu.*, not orders.>", "max_deliver is 3, not -1"
	for _, c := range []struct {
		differs, filter, stop []string
	}{
		{[]string{filter, wait}, []string{"orders.eu.*"}, []string{filter, wait}},
		{[]string{filter}, []string{">"}, nil},
		{[]string{filter}, nil, nil},
		{[]string{wait}, nil, []string{wait}},
	} {
		var e health.Edits
		if s.sort(&e, c.differs, c.filter); !slices.Equal(e.Stop, c.stop) || len(e.Slow) > 0 {
			t.Errorf("%v with %v: %+v", c.differs, c.filter, e)
		}
	}
}
