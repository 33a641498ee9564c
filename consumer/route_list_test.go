package consumer

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/trouble"
)

func TestRouteList(t *testing.T) {
	t.Parallel()
	var l routeList
	if len(l.all()) > 0 || l.named("orders") != nil || len(l.called("orders")) > 0 || len(l.units()) > 0 || l.stored() != 0 {
		t.Error("it has a route before there is one")
	}
	whole := &route{cfg: Route{Name: "mail"}, count: new(counters)}
	var parts []*route
	for i, name := range []string{"orders/0", "orders/1"} {
		parts = append(parts, &route{cfg: Route{Name: name, part: &generations.Part{Route: "orders", Number: i}}, count: new(counters)})
	}
	l.set(append([]*route{whole}, parts...))
	if l.named("mail") != whole || l.named("orders/1") != parts[1] || l.named("orders") != parts[0] || l.named("other") != nil {
		t.Error("a route is not found by its name")
	}
	if l.calledName("orders/1") != "orders" || l.calledName("mail") != "mail" || l.calledName("gone") != "gone" {
		t.Error("a part is not called as its route")
	}
	if !slices.Equal(l.called("orders"), parts) || !slices.Equal(l.called("mail"), []*route{whole}) || len(l.called("orders/1")) > 0 {
		t.Error("the parts of a route are not found")
	}
	u := new(unit)
	for _, rt := range parts {
		rt.unit.Store(u)
	}
	if !slices.Equal(l.units(), []*unit{u}) {
		t.Errorf("units %v", l.units())
	}
	whole.count.Parked.Add(2)
	parts[0].count.Aside.Add(3)
	if l.stored() != 5 {
		t.Errorf("%d are stored", l.stored())
	}
}

// The first part of the newest generation says what is wrong with the generations. A route that just lost its partitions has no part that would.
func TestRouteList_tellOfGenerations(t *testing.T) {
	t.Parallel()
	none := func() standstill {
		return standstill{troubles: trouble.NewList(slog.New(slog.DiscardHandler), func(string, error) {})}
	}
	routes := []*route{
		{cfg: Route{Name: "orders-g1-0", part: &generations.Part{Route: "orders", To: new(partition.Generation)}}, standstill: none()},
		{cfg: Route{Name: "orders-g2-0", part: &generations.Part{Route: "orders"}}, standstill: none()},
		{cfg: Route{Name: "orders-g2-1", part: &generations.Part{Route: "orders", Number: 1}}, standstill: none()},
		{cfg: Route{Name: "orders"}, standstill: none()},
	}
	var l routeList
	l.set(routes)
	l.tellOfGenerations("orders", errors.New("no leader"), time.Now())
	for i, rt := range routes {
		if says := rt.standstill.troubles.Err() != nil; says != (i == 1) {
			t.Errorf("route %s: %v", rt.cfg.Name, rt.standstill.troubles.Err())
		}
	}
	if l.tellOfGenerations("orders", nil, time.Now()); routes[1].standstill.troubles.Err() != nil {
		t.Errorf("still %v", routes[1].standstill.troubles.Err())
	}
}
