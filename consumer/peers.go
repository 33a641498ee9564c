package consumer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/supervisor"
)

// What an instance learns of an outage it tells the others that have the route, over core NATS: they stand before the same endpoint. See
// [supervisor.Hint]. Nothing is lost when a hint is.

// peerSubject is where hints about a route go; with * it is those about all routes.
func peerSubject(service, route string) string { return service + ".ctl.peer." + route }

// peerHint is a hint as it is sent.
type peerHint struct {
	Instance string `json:"instance"`
	supervisor.Hint
}

// hint tells the other instances.
func (rt *route) hint(h supervisor.Hint) {
	data, err := json.Marshal(peerHint{rt.relay.cfg.Instance, h})
	if err != nil || rt.handlesEvents() || rt.cfg.Leased() {
		return
	}
	_ = rt.relay.nc.Publish(peerSubject(rt.relay.cfg.Service, rt.cfg.Name), data)
}

// hearPeers has the routes hear what the others tell, until stop is called.
func (r *Relay) hearPeers() (stop func(), err error) {
	sub, err := r.nc.Subscribe(peerSubject(r.cfg.Service, "*"), func(m *nats.Msg) {
		var h peerHint
		if json.Unmarshal(m.Data, &h) != nil || h.Instance == "" || h.Instance == r.cfg.Instance || len(h.Instance) > control.MaxKey {
			return
		}
		if rt := r.routes.named(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]); rt != nil && !rt.cfg.Leased() {
			rt.group.Hear(h.Instance, h.Hint)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("hints of other instances: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
