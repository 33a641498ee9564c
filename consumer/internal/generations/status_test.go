package generations

import (
	"slices"
	"testing"

	"github.com/relaymq/relay/internal/control"
)

func TestRoute_Status(t *testing.T) {
	t.Parallel()
	r := New(nil, "billing", streams(2, 3))
	s := r.Status([]int{1}, []int{0})
	if s.Count != 3 || s.Generation != 4 || s.Stream != "RELAY_BILLING_G4" || !slices.Equal(s.Here, []int{1}) || !slices.Equal(s.Nobody, []int{0}) ||
		!slices.Equal(s.HandingOver, []int{3}) || s.Behind != nil {
		t.Errorf("%+v", s)
	}
	r.behind.Store(5)
	if s := r.Status(nil, nil); s.Behind == nil || *s.Behind != 5 {
		t.Errorf("behind %v, want 5", s.Behind)
	}
}

// The route says why nothing of it is here, and that it hands over, in place of what its parts say.
func TestRoute_Together(t *testing.T) {
	t.Parallel()
	one, two := New(nil, "billing", streams(2)), New(nil, "billing", streams(2, 3))
	standby := control.RouteStatus{Name: "billing", State: control.StateStandby, Why: "instance b has it", Holder: new(control.HolderStatus)}
	flowing := control.RouteStatus{Name: "billing", State: control.StateFlowing}
	stopped := control.RouteStatus{Name: "billing", State: control.StateStopped, Why: "told to"}
	for what, c := range map[string]struct {
		r      *Route
		part   control.RouteStatus
		nobody []int
		why    string
	}{
		"others have it":      {one, standby, nil, "other instances have its partitions"},
		"nobody has it":       {one, standby, []int{1}, "no instance has its partitions yet"},
		"it flows":            {one, flowing, nil, ""},
		"it changes":          {two, flowing, nil, "the route changes to 3 partitions; messages that wait in the former ones are handed over first"},
		"it is stopped":       {two, stopped, nil, "told to"},
		"it changes, standby": {two, standby, nil, "the route changes to 3 partitions; messages that wait in the former ones are handed over first"},
	} {
		s := c.r.Together([]control.RouteStatus{c.part, c.part}, 10, c.r.Status(nil, c.nobody))
		if s.Why != c.why || s.State != c.part.State || s.Stream != "ORDERS" || s.Holder != nil || s.Partitions == nil {
			t.Errorf("%s: %+v", what, s)
		}
	}
}
