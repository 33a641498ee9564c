package generations

import "github.com/relaymq/relay/internal/partition"

// Part is what runs of a route with partitions for one partition of one generation.
type Part struct {
	Route   string // of the configuration
	Stream  string // of the user
	Durable string // that it would have without partitions: a part of the ids of messages
	Number  int
	Of      partition.Generation
	After   bool                  // there are former generations, and it is the first part of the newest
	To      *partition.Generation // messages are handed over to it; nil: they are handled
	// Between are the generations between both. They have what comes before in each key: it was handed over to them.
	Between []partition.Generation
}

// Parts are those of the route, the oldest generation first.
func (r *Route) Parts() (list []Part) {
	for i, s := range r.Streams {
		var to *partition.Generation
		var between []partition.Generation
		if newest := r.Newest(); s != newest {
			to = new(newest.Generation)
			for _, b := range r.Streams[i+1 : len(r.Streams)-1] {
				between = append(between, b.Generation)
			}
		}
		for n := range s.Count {
			list = append(list, Part{
				Route: r.Name, Stream: s.Generation.Stream, Durable: s.Durable, Number: n, Of: s.Generation, After: n == 0 && len(r.Streams) > 1, To: to, Between: between,
			})
		}
	}
	return list
}

// Name is that of the route which runs for the part.
func (p *Part) Name() string { return p.Of.RouteOf(p.Number) }

// HandsOver tells whether messages of the part are handed over to another generation. Nil is no part.
func (p *Part) HandsOver() bool { return p != nil && p.To != nil }

// IsCopy tells whether another part has the handler and the settings as well, and is the one that is looked at.
func (p *Part) IsCopy() bool { return p != nil && (p.Number > 0 || p.To != nil) }

// Stays tells whether a part that is to run does what this one of its name does already.
func (p *Part) Stays(next *Part) bool {
	return p != nil && p.After == next.After && (p.To == nil) == (next.To == nil) && (p.To == nil || p.To.Number == next.To.Number)
}
