package limit

import (
	"cmp"
	"slices"
	"time"
)

// Status is a snapshot of a limit.
type Status struct {
	Name    string
	Bounds  Bounds
	Closed  string
	Left    int       // how many more may start until Until, with Why
	Until   time.Time // zero: no such bound holds
	Note    string
	Why     string
	Used    int // in all buckets
	Buckets int
	// Holders are how much each member has, over all buckets.
	Holders map[string]int
	// Waiting are the buckets for which somebody waits, longest first.
	Waiting []BucketStatus
}

// BucketStatus is a snapshot of a bucket.
type BucketStatus struct {
	Value   string
	Used    int
	Since   time.Time // somebody has been waiting
	Waiting []string  // members
}

// Status is what all limits that are in force look like, by name.
func (b *Book) Status() (list []Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.limits {
		if !l.planned {
			list = append(list, l.status())
		}
	}
	slices.SortFunc(list, func(x, y Status) int { return cmp.Compare(x.Name, y.Name) })
	return list
}

// Status is what the limit looks like.
func (l *Limit) Status() Status {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	return l.status()
}

func (l *Limit) status() Status {
	s := Status{Name: l.name, Bounds: l.bounds, Closed: cmp.Or(l.closed, l.lacks), Note: l.note, Buckets: len(l.buckets), Holders: make(map[string]int)}
	if slow := l.slow; slow != nil && time.Now().Before(slow.until) {
		s.Left, s.Until, s.Why = slow.left, slow.until, slow.why
	}
	for _, b := range l.buckets {
		s.Used += b.used
		for _, seat := range b.seats {
			s.Holders[seat.member.Name] += seat.used
		}
		if len(b.line) == 0 {
			continue
		}
		w := BucketStatus{Value: b.value, Used: b.used, Since: b.since}
		for _, seat := range b.line {
			w.Waiting = append(w.Waiting, seat.member.Name)
		}
		s.Waiting = append(s.Waiting, w)
	}
	slices.SortFunc(s.Waiting, func(x, y BucketStatus) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Value, y.Value))
	})
	return s
}
