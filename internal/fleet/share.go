package fleet

import (
	"cmp"
	"slices"
	"strconv"
)

// fairShares divides so many parts among sessions by what each wants: nobody gets more than it wants, and what one leaves is for the
// others alike. What is left over goes round with the epoch, so that one part among three is each one's in turn.
func fairShares(total int, wants map[string]int, epoch int64) map[string]int {
	shares := make(map[string]int, len(wants))
	open := make([]string, 0, len(wants))
	for id, want := range wants {
		if want > 0 {
			open = append(open, id)
		}
	}
	slices.SortFunc(open, func(a, b string) int {
		return cmp.Or(cmp.Compare(wants[a], wants[b]), cmp.Compare(a, b))
	})
	for len(open) > 0 && wants[open[0]] <= total/len(open) { // the modest first
		shares[open[0]] = wants[open[0]]
		total -= wants[open[0]]
		open = open[1:]
	}
	if len(open) == 0 {
		return shares
	}
	turn := func(id string) uint64 { return weight(strconv.FormatInt(epoch, 10), id) }
	slices.SortFunc(open, func(a, b string) int { return cmp.Or(cmp.Compare(turn(a), turn(b)), cmp.Compare(a, b)) })
	each, rest := total/len(open), total%len(open)
	for i, id := range open {
		shares[id] = each
		if i < rest && wants[id] > each {
			shares[id]++
		}
	}
	return shares
}

// portion is what an instance knows of a limit, and what it does next. It is a value that only step changes, so that tests can play
// whatever order of events they like.
type portion struct {
	id    string // of the session
	total int
	wants map[string]int  // of the sessions that live, this one's as it is now
	over  map[string]bool // sessions that have ended
	epoch int64

	have     map[string]int // as the document says, at its revision
	revision uint64
	used     int // parts in use here
	bound    int // parts that may be used here at most: never more than the document says

	// A write of which nobody knows whether it counts may have left this instance with fewer parts. That many are certain until the document is
	// seen to have changed since.
	doubted   bool
	doubtedAt uint64 // revision
	certain   int
}

// doubt is told that a write failed, or that its answer was lost.
func (p *portion) doubt(next int) {
	if p.doubted && p.doubtedAt == p.revision {
		next = min(next, p.certain)
	}
	p.doubted, p.doubtedAt, p.certain = true, p.revision, next
	p.bound = min(p.bound, next)
}

// step decides what this instance may use from now on, and whether the document is to be changed. The bound goes down before the
// document does, and up only after.
func (p *portion) step() (write map[string]int) {
	mine := p.have[p.id]
	p.bound = min(p.bound, mine)
	shares := fairShares(p.total, p.wants, p.epoch)
	share := shares[p.id]
	taken, hungry, gone := 0, false, false
	for id, n := range p.have {
		switch {
		case id == p.id:
		case p.over[id]:
			gone = true
		default:
			taken += n
		}
	}
	for id, n := range shares {
		hungry = hungry || id != p.id && p.wants[id] > p.have[id] && n > p.have[id]
	}
	next := mine
	switch {
	case mine > p.total:
		p.bound = min(p.bound, p.total)
		next = max(p.total, p.used)
	case hungry && mine > share && taken+mine >= p.total:
		p.bound = min(p.bound, share)
		next = max(share, p.used) // the rest when it is not used any more
	case p.wants[p.id] > mine:
		// Others give back what is above their share, so that more than the own share is only what nobody wants.
		next = min(p.wants[p.id], mine+max(0, p.total-taken-mine))
		if hungry {
			next = max(mine, min(next, share))
		}
		p.bound = mine
	default:
		p.bound = mine
	}
	if p.doubted && p.doubtedAt == p.revision {
		p.bound = min(p.bound, p.certain)
	}
	if next == mine {
		return nil
	}
	write = make(map[string]int, len(p.have)+1)
	for id, n := range p.have {
		if id == p.id || gone && p.over[id] {
			continue
		}
		write[id] = n
	}
	if next > 0 {
		write[p.id] = next
	}
	return write
}
