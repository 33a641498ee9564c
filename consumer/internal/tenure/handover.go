package tenure

import (
	"cmp"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/control"
)

// Order says what this instance does by an operator's order to hand the claim over. A holder that gives it (Giving) is to end its work now. From then on
// it leaves the claim to the others, as do those that stand by and are not to have it (Resting). Standbys are the other instances that would take it.
func (t *Tenure) Order(order control.HandoverOrder, standbys []string) (out control.HandedOver) {
	h, mine := t.Holder(), t.Has()
	switch {
	case mine && order.From != "" && order.From != t.cfg.Instance, !mine && h.Instance != order.From:
		out.Refused = "instance " + cmp.Or(h.Instance, "?") + " has the route"
	case !mine && h.Instance == t.cfg.Instance:
		out.Refused = "this instance cannot prove that it has the route: its lease was not renewed in time"
	case mine && order.To == t.cfg.Instance:
		out.Refused = "this instance already has the route"
	case mine && order.To != "" && !slices.Contains(standbys, order.To):
		out.Refused = "instance " + order.To + " does not stand by for the route"
	case mine && len(standbys) == 0:
		out.Refused = "no other instance stands by for the route"
	case mine:
		out.Giving = true
		t.Leave()
	case order.To != "" && order.To != t.cfg.Instance:
		out.Resting = true
		t.rest(time.Now().Add(2 * t.cfg.Lease))
	}
	return out
}

// Leave leaves the claim to the others once the work of this instance has ended, which is to be soon.
func (t *Tenure) Leave() { t.rest(time.Now().Add(t.cfg.DrainTime() + 2*t.cfg.Lease)) }

// Keep takes Leave back.
func (t *Tenure) Keep() { t.rest(time.Time{}) }

// rest has this instance not take the claim until then, or until another one had it.
func (t *Tenure) rest(until time.Time) {
	if f := t.cfg.Membership.Now(); f != nil {
		f.Rest(t.cfg.Resource, until)
	}
}
