// Package planned has what relay plan says: what would become of messages if a configuration ran.
package planned

import (
	"cmp"
	"slices"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orphans"
)

// Plan says what would become of messages if a configuration ran, by the server as it is now.
type Plan struct {
	// Streams do not exist, and are made first.
	Streams  []Stream  `json:"streams,omitempty"`
	Durables []Durable `json:"durables"`
	// Divided are routes with partitions.
	Divided []Divided `json:"divided,omitempty"`
	// Left is what waits on the server for routes, durables and streams that the configuration does not have. What instances with another
	// configuration use now is among it.
	Left []orphans.Orphan `json:"left"`
	// Faults are why relay would not start with it, or would refuse a reload, beside those of durables.
	Faults []string `json:"faults"`
}

// Stream is one that is made.
type Stream struct {
	Stream   string   `json:"stream"`
	Subjects []string `json:"subjects"`
}

// What a configuration does with a durable.
const (
	Stays   = "stays"   // and goes on where it is
	Made    = "made"    // it does not exist
	Changed = "changed" // its subjects, or how many instances pull from it
	Refused = "refused" // relay does not use it as it is
)

// Durable is what a configuration does with the durable of some routes, and what that delivers.
type Durable struct {
	Stream  string   `json:"stream"`
	Durable string   `json:"durable"`
	Routes  []string `json:"routes"`
	// Service is the one that made it, when it is another one, of which nothing but this durable is taken over: retries and dead letters stay
	// under its name.
	Service string `json:"service,omitempty"`
	// Does is Stays, Made, Changed or Refused, and Why what keeps relay from using it, or what is changed.
	Does string   `json:"does"`
	Why  []string `json:"why,omitempty"`
	// Waits are messages that it has not delivered: of one that is made, from its start on. Outstanding are delivered and not settled.
	Waits       uint64 `json:"waits"`
	Outstanding int    `json:"outstanding"`
	// Start is where one begins that is made, and Skipped are messages on its subjects that are stored before that: nobody gets them.
	Start   string `json:"start,omitempty"`
	Skipped uint64 `json:"skipped,omitempty"`
	// Again is what one that is made delivers, or one that has passed it hands over, although it was handled before. With start: all a reload
	// refuses that.
	Again []control.Again `json:"again,omitempty"`
	// CatchUp are messages that it has passed, and that a route wants now.
	CatchUp []CatchUp `json:"catch_up,omitempty"`
	// Unwanted are subjects that it goes on to deliver, and that no route of the configuration reads from it: such messages are kept in the
	// retry stream until a route wants them. With --adopt that ends.
	Unwanted []string `json:"unwanted,omitempty"`
}

// Divided is what a configuration does with the partitions of a route.
type Divided struct {
	Route string `json:"route"`
	// Does is Stays, Made or Changed, and Stream the one that holds the messages of the partitions, or will.
	Does       string `json:"does"`
	Stream     string `json:"stream"`
	Partitions int    `json:"partitions"`
	// Before is how many there are now.
	Before int `json:"before,omitempty"`
	// Start is where the messages of partitions begin that are made.
	Start string `json:"start,omitempty"`
}

// CatchUp are messages on subjects that a route gets for the first time, from a durable that has passed them.
type CatchUp struct {
	Route    string `json:"route"`
	Subjects string `json:"subjects"`
	// Messages are handed over to the route, as its start says; Skipped are those from before that.
	Messages uint64 `json:"messages"`
	Skipped  uint64 `json:"skipped,omitempty"`
}

// Refused tells whether relay would not start with the configuration, or would refuse to reload it.
func (p *Plan) Refused() bool {
	return len(p.Faults) > 0 || slices.ContainsFunc(p.Durables, func(d Durable) bool { return d.Does == Refused || d.Repeats() })
}

// Sort puts the durables in order.
func (p *Plan) Sort() {
	slices.SortFunc(p.Durables, func(a, b Durable) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Durable, b.Durable))
	})
}

// Repeats tells whether a reload would be refused because of what is delivered again.
func (d *Durable) Repeats() bool {
	return slices.ContainsFunc(d.Again, func(a control.Again) bool { return a.All })
}
