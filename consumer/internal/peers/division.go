package peers

import (
	"time"

	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/partition"
)

// Division is how a generation's partitions are divided just now: how many each instance has that may have some.
type Division struct {
	count int // of partitions
	own   string
	has   map[string]int // by session
}

// Divide is how the partitions of a generation are divided. Without a fleet nobody has any.
func Divide(f *fleet.Fleet, g partition.Generation) Division {
	d := Division{count: g.Count, has: make(map[string]int)}
	if f == nil {
		return d
	}
	first := g.RouteOf(0)
	for m, s := range Here(f) {
		if !s.Draining && s.Has(first) {
			d.has[m.Session] = 0
		}
	}
	for i := range g.Count {
		h, ok := f.Holder(Resource(g.Name(), g.DurableOf(i)))
		if _, stays := d.has[h.Session]; !ok || !stays {
			continue // nobody has it, or soon
		}
		if d.has[h.Session]++; h.Mine {
			d.own = h.Session
		}
	}
	return d
}

// Fair is how many each instance is to have.
func (d Division) Fair() (least, most int) {
	n := max(len(d.has), 1)
	return d.count / n, (d.count + n - 1) / n
}

// Over is how many this instance is to hand over: what it has too many, or one when others have too few and nobody has too many. All instances come
// to the same answer of who that is, but for moments after a change.
func (d Division) Over() int {
	least, most := d.Fair()
	own := d.has[d.own]
	if own > most {
		return own - most
	}
	if own <= least {
		return 0
	}
	lack := 0
	free, before := d.count, 0
	for session, has := range d.has {
		lack += max(least-has, 0) - max(has-most, 0)
		free -= has
		if has == own && session < d.own {
			before++
		}
	}
	if before < lack-free { // what nobody has just now goes to those with too few first
		return 1
	}
	return 0
}

// Own is how many this instance has.
func (d Division) Own() int { return d.has[d.own] }

// Instances is how many may have some.
func (d Division) Instances() int { return len(d.has) }

// reluctance is for how long an instance that has its share leaves a partition to others.
const reluctance = 300 * time.Millisecond

// Reluctance is for how long this instance leaves a partition to others that have fewer.
func (d Division) Reluctance() time.Duration {
	switch least, most := d.Fair(); {
	case d.Own() >= most:
		return reluctance
	case d.Own() >= max(least, 1):
		return reluctance / 2
	}
	return 0
}

// Holds are the partitions of a generation that this instance has, and those that nobody has. Without a fleet nobody has any.
func Holds(f *fleet.Fleet, g partition.Generation) (here, nobody []int) {
	for n := range g.Count {
		if f == nil {
			nobody = append(nobody, n)
		} else if h, ok := f.Holder(Resource(g.Name(), g.DurableOf(n))); !ok {
			nobody = append(nobody, n)
		} else if h.Mine {
			here = append(here, n)
		}
	}
	return here, nobody
}
