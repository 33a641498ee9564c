package limit

import "time"

// Part is what a process has of a limit that several processes share.
type Part struct {
	Bounds Bounds
	Lacks  string // why the process has no part now, so that nothing starts until one comes; empty: it has one
	Note   string // for status
}

// Allot gives the limit a part of what several processes share. What is reserved stays reserved while a part is awaited: it is in use, for
// the others as well.
func (l *Limit) Allot(p Part) {
	l.book.mu.Lock()
	l.shared = true
	l.allot(p)
	l.book.mu.Unlock()
	l.pass()
}

// Own ends what Allot began: the bounds are for this process alone.
func (l *Limit) Own(bounds Bounds) {
	l.book.mu.Lock()
	l.shared = false
	l.allot(Part{Bounds: bounds})
	l.book.mu.Unlock()
	l.pass()
}

func (l *Limit) allot(p Part) {
	l.bounds, l.lacks, l.note, l.closed = p.Bounds, p.Lacks, p.Note, ""
	for _, b := range l.buckets {
		b.rate.bound(p.Bounds)
	}
}

// Demand is what is wanted of a limit.
type Demand struct {
	Used    int       // places that are taken, or kept for what stands in the line of another limit
	Waiting int       // what would start now if there were room
	Since   time.Time // somebody has been waiting without a pause; zero: nobody is
}

// Demand tells what is wanted of the limit. It may stop counting those who wait at most.
func (l *Limit) Demand(most int) (d Demand) {
	type line struct {
		bucket *Bucket
		member *Member
	}
	var lines []line
	l.book.mu.Lock()
	for _, b := range l.buckets {
		d.Used += b.used
		for _, s := range b.line {
			lines = append(lines, line{b, s.member})
		}
		if len(b.line) > 0 && (d.Since.IsZero() || b.since.Before(d.Since)) {
			d.Since = b.since
		}
	}
	l.book.mu.Unlock()
	for _, of := range lines {
		if d.Waiting >= most {
			break
		}
		n := 1
		if of.member.Waiting != nil {
			n = of.member.Waiting(of.bucket, most)
		}
		d.Waiting += n
	}
	if d.Waiting == 0 {
		d.Since = time.Time{}
	}
	return d
}
