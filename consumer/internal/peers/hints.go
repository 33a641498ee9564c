package peers

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
)

// Hints are what an instance learns of an outage and tells the others that have the route, over core NATS: they stand before the same endpoint. See
// [supervise.Hint]. Nothing is lost when a hint is.
type Hints struct {
	Conn              *nats.Conn
	Service, Instance string
}

// hint is one as it is sent.
type hint struct {
	Instance string `json:"instance"`
	supervise.Hint
}

// subject is where hints about a route go; with * it is those about all routes.
func (s Hints) subject(route string) string { return s.Service + ".ctl.peer." + route }

// Tell tells the others.
func (s Hints) Tell(route string, h supervise.Hint) {
	if data, err := json.Marshal(hint{s.Instance, h}); err == nil {
		_ = s.Conn.Publish(s.subject(route), data)
	}
}

// Hear has heard called with what the others tell, until stop is called.
func (s Hints) Hear(heard func(route, instance string, h supervise.Hint)) (stop func(), err error) {
	sub, err := s.Conn.Subscribe(s.subject("*"), func(m *nats.Msg) {
		var h hint
		if json.Unmarshal(m.Data, &h) != nil || h.Instance == "" || h.Instance == s.Instance || len(h.Instance) > control.MaxKey {
			return
		}
		heard(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], h.Instance, h.Hint)
	})
	if err != nil {
		return nil, fmt.Errorf("hints of other instances: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
