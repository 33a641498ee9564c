package route

import "github.com/relaymq/relay/consumer/internal/placing"

// placed is what has to be known of the route to find its place.
func (r Spec) Placed() placing.Route {
	return placing.Route{
		Name: r.Name, Subjects: r.Subjects, Stream: r.Stream, Durable: r.Durable, Instances: r.Instances, Leased: r.Leased(), Divided: r.Partitions > 0,
	}
}

// isUnplaced tells whether the route never had a stream.
func (rt *Route) IsUnplaced() bool { return rt.Place.Load() == nil }
