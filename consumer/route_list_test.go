package consumer

import (
	"slices"
	"testing"
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
		parts = append(parts, &route{cfg: Route{Name: name, part: &partOfRoute{Route: "orders", Number: i}}, count: new(counters)})
	}
	l.set(append([]*route{whole}, parts...))
	if l.named("mail") != whole || l.named("orders/1") != parts[1] || l.named("orders") != parts[0] || l.named("other") != nil {
		t.Error("a route is not found by its name")
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
