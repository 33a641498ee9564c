package engine

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/trouble"
)

func TestRouteList(t *testing.T) {
	t.Parallel()
	var l routeList
	if len(l.All()) > 0 || l.Named("orders") != nil || len(l.called("orders")) > 0 || len(l.Units()) > 0 || l.stored() != 0 {
		t.Error("it has a route before there is one")
	}
	whole := &route.Route{Spec: route.Spec{Name: "mail"}, Count: new(route.Counters)}
	var parts []*route.Route
	for i, name := range []string{"orders/0", "orders/1"} {
		parts = append(parts, &route.Route{Spec: route.Spec{Name: name, Part: &generations.Part{Route: "orders", Number: i}}, Count: new(route.Counters)})
	}
	l.set(append([]*route.Route{whole}, parts...))
	if l.Named("mail") != whole || l.Named("orders/1") != parts[1] || l.Named("orders") != parts[0] || l.Named("other") != nil {
		t.Error("a route is not found by its name")
	}
	if l.calledName("orders/1") != "orders" || l.calledName("mail") != "mail" || l.calledName("gone") != "gone" {
		t.Error("a part is not called as its route")
	}
	if !slices.Equal(l.called("orders"), parts) || !slices.Equal(l.called("mail"), []*route.Route{whole}) || len(l.called("orders/1")) > 0 {
		t.Error("the parts of a route are not found")
	}
	u := new(Unit)
	for _, rt := range parts {
		rt.Place.Store(&route.Place{Owner: u})
	}
	if !slices.Equal(l.Units(), []*Unit{u}) {
		t.Errorf("units %v", l.Units())
	}
	whole.Count.Parked.Add(2)
	parts[0].Count.Aside.Add(3)
	if l.stored() != 5 {
		t.Errorf("%d are stored", l.stored())
	}
}

// The first part of the newest generation says what is wrong with the generations. A route that just lost its partitions has no part that would.
func TestRouteList_tellOfGenerations(t *testing.T) {
	t.Parallel()
	none := func() route.Standstill {
		return route.Standstill{Troubles: trouble.NewList(slog.New(slog.DiscardHandler), func(string, error) {})}
	}
	routes := []*route.Route{
		{Spec: route.Spec{Name: "orders-g1-0", Part: &generations.Part{Route: "orders", To: new(partition.Generation)}}, Standstill: none()},
		{Spec: route.Spec{Name: "orders-g2-0", Part: &generations.Part{Route: "orders"}}, Standstill: none()},
		{Spec: route.Spec{Name: "orders-g2-1", Part: &generations.Part{Route: "orders", Number: 1}}, Standstill: none()},
		{Spec: route.Spec{Name: "orders"}, Standstill: none()},
	}
	var l routeList
	l.set(routes)
	l.tellOfGenerations("orders", errors.New("no leader"), time.Now())
	for i, rt := range routes {
		if says := rt.Standstill.Troubles.Err() != nil; says != (i == 1) {
			t.Errorf("route %s: %v", rt.Spec.Name, rt.Standstill.Troubles.Err())
		}
	}
	if l.tellOfGenerations("orders", nil, time.Now()); routes[1].Standstill.Troubles.Err() != nil {
		t.Errorf("still %v", routes[1].Standstill.Troubles.Err())
	}
}
