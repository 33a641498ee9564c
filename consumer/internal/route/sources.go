package route

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/supervisor"
)

// toSource is what durables know of the route.
func (rt *Route) toSource() source.Route {
	c := rt.Spec
	return source.Route{
		Owner: rt, Name: c.Name, Called: rt.Name(), Log: rt.Log, Subjects: c.Subjects, AckWait: c.AckWait, Ordered: c.Order == supervisor.OrderKey,
		Start:  c.Start,
		Leased: c.Leased(), Part: c.Part, MaxAge: func() time.Duration { return rt.Now().Retry.MaxAge },
		Group: rt.Group, Path: rt.Path, Memory: rt.Memory, Intake: rt.intake, Looks: rt.Questions, Troubles: rt.Standstill.Troubles, Tally: &rt.Count.Tally,
		Within: rt.within,
	}
}
