package consumer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/supervisor"
	"time"
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
		if rt := r.route(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]); rt != nil && !rt.cfg.Leased() {
			rt.group.Hear(h.Instance, h.Hint)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("hints of other instances: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// amongMany is a period of looks that every instance makes, with many instances: from eight on it is longer, up to four times, so that the server
// is not asked in proportion to them.
func (r *Relay) amongMany(period time.Duration) time.Duration {
	others := 0
	if l := r.stores.Lives.Load(); l != nil {
		others = l.Others()
	}
	return period * time.Duration(min(max(1, (others+1)/4), 4))
}
