package dlq

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/fingerprint"
)

// Group are entries whose last errors have the same [fingerprint.Of], of one route.
type Group struct {
	Count       int       `json:"count"`
	First       time.Time `json:"first"` // stored
	Last        time.Time `json:"last"`
	Route       string    `json:"route"`
	Fingerprint string    `json:"fingerprint"`
	// Sample is the number of the newest of them, and Error its error.
	Sample uint64 `json:"sample"`
	Error  string `json:"error"`
}

// maxGroups bounds the memory of [Groups]. What comes beyond is counted under the fingerprint "(others)".
const maxGroups = 10_000

// Groups gathers entries by route and error. Create it with [NewGroups].
type Groups struct {
	by map[[2]string]*Group
	// Outages repeat one error a thousand times.
	lastErr, lastPrint string
}

// NewGroups returns an empty one.
func NewGroups() *Groups { return &Groups{by: make(map[[2]string]*Group)} }

// Add counts an entry.
func (g *Groups) Add(e Entry) {
	if e.LastError != g.lastErr || g.lastPrint == "" {
		g.lastErr, g.lastPrint = e.LastError, fingerprint.Of(e.LastError)
	}
	g.add(e.Route, g.lastPrint, e.LastError, e.StoredSequence, e.StoredTime)
}

func (g *Groups) add(route, print, text string, number uint64, at time.Time) {
	key := [2]string{route, print}
	group := g.by[key]
	if group == nil && len(g.by) >= maxGroups {
		key = [2]string{"", "(others)"}
		group = g.by[key]
	}
	if group == nil {
		group = &Group{First: at, Route: key[0], Fingerprint: key[1]}
		g.by[key] = group
	}
	group.Count++
	group.Last, group.Sample, group.Error = at, number, text
}

// List returns the groups, largest first.
func (g *Groups) List() []Group {
	var all []Group
	for _, group := range g.by {
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return all
}

var seed = maphash.MakeSeed()

// hash stands for a string in large sets.
func hash(s string) uint64 { return maphash.String(seed, s) }
