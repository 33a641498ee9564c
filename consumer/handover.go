package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/orders"
)

func handoverSubject(service string) string { return service + ".ctl.act.handover" }

// HandoverOrder asks the instance that has a route with instances: one to give it to another one.
type HandoverOrder struct {
	Route string `json:"route"`
	// From is the instance that has it: an order that comes late, when somebody else has the route already, does nothing.
	From string `json:"from"`
	// To is the instance that is to have it; empty: any that stands by.
	To     string `json:"to,omitempty"`
	By     string `json:"by,omitempty"`
	Format int    `json:"format"`
}

// HandedOver is what an instance says of the order.
type HandedOver struct {
	Instance string `json:"instance"`
	Service  string `json:"service"`
	Route    string `json:"route"`
	// Giving: it had the route, and drains it. Resting: it stood by, and leaves the route to the others for a while.
	Giving  bool   `json:"giving,omitempty"`
	Resting bool   `json:"resting,omitempty"`
	Refused string `json:"refused,omitempty"` // why it does not
}

// Handover has the instance that has the route give it to another one, with a drain: handlers that run finish, for as long as Config.Drain
// permits. The answers come when the drain begins. [ErrNobody] says that no instance has answered.
func Handover(ctx context.Context, nc *nats.Conn, service string, order HandoverOrder) (list []HandedOver, bad []string, err error) {
	order.Format = orders.Format
	request, err := json.Marshal(order)
	if err != nil {
		return nil, nil, err
	}
	err = gather(ctx, nc, handoverSubject(service), request, func(data []byte) error {
		var h HandedOver
		if json.Unmarshal(data, &h) != nil || h.Instance == "" || len(h.Instance) > maxKeyShown || h.Service != service || h.Route != order.Route {
			return errors.New("the answer does not say what became of the order")
		}
		if slices.ContainsFunc(list, func(o HandedOver) bool { return o.Instance == h.Instance }) {
			return fmt.Errorf("instance %q answers twice", h.Instance)
		}
		list = append(list, h)
		return nil
	}, &bad)
	if err == nil && len(list) == 0 {
		err = ErrNobody
	}
	slices.SortFunc(list, func(a, b HandedOver) int { return cmp.Compare(a.Instance, b.Instance) })
	return list, bad, err
}

// answerHandover gives a route away, or leaves it to others.
func (r *Relay) answerHandover(q *microRequest) {
	var order HandoverOrder
	if json.Unmarshal(q.Data, &order) != nil || order.Format > orders.Format {
		q.fail("400", "this is no order, or one of a newer relay")
		return
	}
	_ = q.respond(r.handover(order))
}

func (r *Relay) handover(order HandoverOrder) HandedOver {
	out := HandedOver{Instance: r.cfg.Instance, Service: r.cfg.Service, Route: order.Route}
	rt, f := r.route(order.Route), r.grid.now()
	if rt != nil && rt.name() != order.Route {
		rt = nil
	}
	switch {
	case rt == nil:
		return out
	case rt.cfg.part != nil:
		out.Refused = "the instances share the partitions of the route, which move by themselves"
		return out
	case !rt.cfg.Leased():
		out.Refused = "all instances handle messages of the route"
		return out
	case f == nil:
		out.Refused = "it does not know of the other instances yet"
		return out
	}
	u := rt.unit.Load()
	if u == nil {
		out.Refused = "the route is starting"
		return out
	}
	l := u.tenure.lease.Load()
	mine := l != nil && l.Valid()
	switch h := rt.holder(); {
	case mine && order.From != "" && order.From != r.cfg.Instance, !mine && h.Instance != order.From:
		out.Refused = "instance " + cmp.Or(h.Instance, "?") + " has the route"
	case !mine && h.Instance == r.cfg.Instance:
		out.Refused = "it cannot prove just now that it has the route: its lease was not renewed in time"
	case mine && order.To == r.cfg.Instance:
		out.Refused = "it has the route already"
	case mine && order.To != "" && !slices.Contains(h.Standbys, order.To):
		out.Refused = "instance " + order.To + " does not stand by for the route"
	case mine && len(h.Standbys) == 0:
		out.Refused = "no other instance stands by for the route"
	case mine:
		out.Giving = true
		f.Rest(u.resource(), time.Now().Add(r.drainTime()+2*r.cfg.Fleet.lease()))
		rt.log.Info("the route is handed over by order of an operator", "by", order.By, "to", order.To)
		u.handOver()
	case order.To != "" && order.To != r.cfg.Instance:
		out.Resting = true
		f.Rest(u.resource(), time.Now().Add(2*r.cfg.Fleet.lease()))
	}
	return out
}

// handOver ends the work on a unit, with a drain, and stands by again.
func (u *unit) handOver() {
	r := u.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || u.closing {
		return
	}
	r.changes.Go(func() {
		if err := r.restart(r.ends, u); err != nil && !errors.Is(err, ErrNotRunning) {
			u.main.log.Warn("the route was not handed over; this instance keeps it", "error", err)
			if f := r.grid.now(); f != nil {
				f.Rest(u.resource(), time.Time{})
			}
		}
	})
}

// MemberStatus is an instance that is there no more, as the others remember it for an hour: those of services in which instances have sessions
// (routes with instances: one, limits of the service).
type MemberStatus struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Gone     time.Time `json:"gone"`
	// Clean: it said before that it ends.
	Clean bool `json:"clean,omitempty"`
}

// gone are those.
func (g *grid) gone() (list []MemberStatus) {
	f := g.now()
	if f == nil {
		return nil
	}
	members, _ := f.Members()
	for _, m := range members {
		if !m.Gone.IsZero() && len(list) < maxTroubles {
			list = append(list, MemberStatus{cut(m.Instance, maxKeyShown), cut(m.Version, maxKeyShown), m.Gone.UTC(), stateOf(m).Draining})
		}
	}
	return list
}
