package fleet

import (
	"cmp"
	"slices"
	"time"
)

// fairShares divides so many parts among sessions by what each wants: nobody gets more than it wants, and what one leaves is for the
// others alike. What is left over goes to those that come first in line.
func fairShares(total int, wants map[string]int, line []string) map[string]int {
	shares := make(map[string]int, len(wants))
	open := make([]string, 0, len(wants))
	for _, id := range line {
		if wants[id] > 0 {
			open = append(open, id)
		}
	}
	slices.SortStableFunc(open, func(a, b string) int { return cmp.Compare(wants[a], wants[b]) })
	for len(open) > 0 && wants[open[0]] <= total/len(open) { // the modest first
		shares[open[0]] = wants[open[0]]
		total -= wants[open[0]]
		open = open[1:]
	}
	if len(open) == 0 {
		return shares
	}
	each, rest := total/len(open), total%len(open)
	for _, id := range line {
		if !slices.Contains(open, id) {
			continue
		}
		if shares[id] = each; rest > 0 { // all that are open want more than each
			shares[id]++
			rest--
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
	line  []string        // these sessions, those first that are to have what is left over
	over  map[string]bool // sessions that have ended

	have     map[string]int // as the document says, at its revision
	revision uint64
	used     int // parts in use here
	bound    int // parts that may be used here at most: never more than the document says

	had    int       // own parts at the last look
	gained time.Time // when they were seen to become more

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
// document does, and up only after. What this instance has above its share goes to those that have less than theirs, in the same write:
// so a part is in no hands for no longer than a write takes.
func (p *portion) step() (write map[string]int) {
	mine := p.have[p.id]
	p.bound = min(p.bound, mine)
	shares := fairShares(p.total, p.wants, p.line)
	share := shares[p.id]
	taken, gone := 0, false
	for id, n := range p.have {
		switch {
		case id == p.id:
		case p.over[id]:
			gone = true
		default:
			taken += n
		}
	}
	free, short := p.total-taken-mine, 0
	for id, n := range shares {
		if id != p.id {
			short += max(0, n-p.have[id])
		}
	}
	next := mine
	switch {
	case free < 0: // the limit has become smaller
		target := min(mine, share)
		p.bound = min(p.bound, target)
		next = max(target, min(mine, p.used)) // the rest when it is not used any more
	case mine > share && short > free:
		target := max(share, mine-(short-free))
		p.bound = min(p.bound, target)
		next = max(target, min(mine, p.used))
	case p.wants[p.id] > mine:
		next = min(p.wants[p.id], mine+free)
		if short > 0 {
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
	if free >= 0 {
		p.give(write, shares, mine-next)
	}
	return write
}

// give adds so many parts to those that have less than their share.
func (p *portion) give(write, shares map[string]int, n int) {
	for _, id := range p.line {
		if gift := min(n, shares[id]-write[id]); gift > 0 && id != p.id {
			write[id] += gift
			n -= gift
		}
	}
}

// othersHungry tells whether another instance wants more than it has.
func (p *portion) othersHungry() bool {
	for id, n := range p.wants {
		if id != p.id && n > p.have[id] {
			return true
		}
	}
	return false
}
