package limit

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// Places are what one thing needs: a place in each of some buckets. They are taken together or not at all, so that nobody holds one
// and waits for another.
type Places struct {
	book  *Book
	seats []*seat
}

// Need is a limit and the value of its bucket; empty for a limit that has one bucket only.
type Need struct {
	Limit *Limit
	Value string
}

// Places are those of a member. They must be dropped when they are not needed any more.
func (b *Book) Places(m *Member, needs ...Need) *Places {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	p := &Places{book: b}
	for _, n := range needs {
		bucket := n.Limit.bucket(n.Value, now)
		i := slices.IndexFunc(bucket.seats, func(s *seat) bool { return s.member == m })
		if i < 0 {
			i = len(bucket.seats)
			bucket.seats = append(bucket.seats, &seat{bucket: bucket, member: m})
		}
		bucket.seats[i].refs++
		p.seats = append(p.seats, bucket.seats[i])
	}
	// One order for all: status names the first bucket that is full.
	slices.SortStableFunc(p.seats, func(x, y *seat) int { return strings.Compare(x.bucket.limit.name, y.bucket.limit.name) })
	return p
}

// Buckets are those of the places.
func (p *Places) Buckets() iter.Seq[*Bucket] {
	return func(yield func(*Bucket) bool) {
		for _, s := range p.seats { // which do not change any more
			if !yield(s.bucket) {
				return
			}
		}
	}
}

// Drop gives the places up for good. None is taken.
func (p *Places) Drop() {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for _, s := range p.seats {
		if s.refs--; s.refs <= 0 && s.used == 0 {
			s.leave()
		}
	}
}

// leave takes a seat out of its bucket. The lock is held.
func (s *seat) leave() {
	b := s.bucket
	is := func(o *seat) bool { return o == s }
	b.seats = slices.DeleteFunc(b.seats, is)
	b.line = slices.DeleteFunc(b.line, is)
	if len(b.seats) == 0 && b.timer != nil {
		b.timer.Stop()
	}
}

// Take takes all places, or none: then it returns a bucket that has no room, in whose line the member stands from now on. With pass the
// caller must call its Pass once it holds no lock: there is room, but somebody else is to have it first.
func (p *Places) Take(now time.Time) (full *Bucket, pass bool) {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for _, s := range p.seats {
		b := s.bucket
		ok, _ := b.room(now)
		if others := len(b.line) > 0 && b.line[0] != s; ok && !others {
			continue
		}
		alone := len(b.line) == 0
		b.limit.stood = now
		b.stand(s, now)
		if !ok && alone {
			b.arm(now)
		}
		b.tell()
		return b, ok
	}
	for _, s := range p.seats {
		b := s.bucket
		b.used++
		s.used++
		if b.tokens != nil {
			b.tokens.AllowN(now, 1)
		}
		if l := b.limit.slow; l != nil && l.left > 0 {
			l.left--
		}
		if len(b.line) > 1 { // s is the first, and others want some, too
			b.line = append(b.line[1:], s)
		}
		b.tell()
	}
	return nil, false
}

// Free gives the places back. The buckets that it returns have somebody in their line: the caller must call their Pass once it holds no lock.
func (p *Places) Free(wanted []*Bucket) []*Bucket {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for _, s := range p.seats {
		b := s.bucket
		b.used--
		if s.used--; s.refs <= 0 && s.used == 0 {
			s.leave()
		}
		if len(b.line) > 0 && b.limit.bounds.Places > 0 {
			wanted = append(wanted, b)
		}
		b.tell()
	}
	return wanted
}

// Leave ends a member, which takes nothing any more: it is in no line, and none of its places keeps a bucket. What it has taken stays taken
// until it is given back.
func (b *Book) Leave(m *Member) {
	b.mu.Lock()
	var pass []*Bucket
	for _, l := range b.limits {
		for _, bucket := range l.buckets {
			i := slices.IndexFunc(bucket.seats, func(s *seat) bool { return s.member == m })
			if i < 0 {
				continue
			}
			s, n := bucket.seats[i], len(bucket.line)
			if s.refs = 0; s.used == 0 {
				s.leave()
			} else {
				bucket.line = slices.DeleteFunc(bucket.line, func(o *seat) bool { return o == s })
			}
			if len(bucket.line) < n && len(bucket.line) > 0 {
				pass = append(pass, bucket)
			}
		}
	}
	b.mu.Unlock()
	for _, bucket := range pass {
		bucket.Pass()
	}
}

// tell has whoever watches the limit know. The lock is held.
func (b *Bucket) tell() {
	if f := b.limit.changed; f != nil {
		f()
	}
}
