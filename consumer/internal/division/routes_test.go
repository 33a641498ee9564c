package division

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/internal/partition"
)

// handler counts how often it was stopped.
type handler struct{ stopped int }

func (h *handler) Start(context.Context) error { return nil }
func (h *handler) Stop(context.Context) error  { h.stopped++; return nil }

func TestRoutes(t *testing.T) {
	t.Parallel()
	var l Routes[route]
	if parts, divided := l.Parts("a"); l.Get("a") != nil || divided || len(parts) > 0 || len(l.All()) > 0 {
		t.Error("there is a route before there is one")
	}
	g := generations.New(nil, "a", []*partition.Stream{{Generation: partition.Generation{Route: "a", Number: 2, Layout: partition.Layout{Count: 2}}}})
	a := l.Get("a").Next(g, route{name: "a", parts: 2})
	l.Set("a", a)
	if parts, divided := l.Parts("a"); l.Get("a") != a || !divided || !slices.Equal(parts, []string{"a-g2-0", "a-g2-1"}) || !slices.Equal(l.All(), []*Route[route]{a}) {
		t.Errorf("parts %v of %v", parts, l.All())
	}
	if a.Generations() != g || !slices.Equal(l.Generations(), []*generations.Route{g}) || l.Get("b").Generations() != nil {
		t.Error("its generations are others")
	}
	if l.Set("a", nil); l.Get("a") != nil || len(l.All()) > 0 {
		t.Error("it still has partitions")
	}
}

// The handlers of a route end when the route has others, or no partitions any more.
func TestRoute_handlers(t *testing.T) {
	t.Parallel()
	work, fallback := new(handler), new(handler)
	var none *Route[route]
	first := none.Next(nil, route{})
	first.Handler, first.Fallback = first.Handler.Next(work, time.Second), first.Fallback.Next(fallback, time.Second)
	for _, l := range []interface{ Begin(context.Context) error }{first.Handler.Life(), first.Fallback.Life()} {
		if err := l.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	second := first.Next(nil, route{})
	second.Fallback = second.Fallback.Next(nil, 0)
	if first.EndBefore(t.Context(), second); work.stopped != 0 || fallback.stopped != 1 {
		t.Errorf("stopped %d and %d times, want only the fallback once", work.stopped, fallback.stopped)
	}
	if second.EndBefore(t.Context(), nil); work.stopped != 1 || fallback.stopped != 1 {
		t.Errorf("stopped %d and %d times, want each once", work.stopped, fallback.stopped)
	}
}
