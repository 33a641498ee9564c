package limit

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"
)

// Places are what one thing needs: a place in each of some buckets. It starts when it has all of them.
//
// What needs two contended limits would hardly ever find room in both at once. So the places that it was offered are reserved for it while
// it stands in the line of the next (reserve.go). Everybody takes places in the same order, so that no two wait for each other.
type Places struct {
	book  *Book
	seats []*seat
	turn  uint64 // since it was last taken: when it first found no room
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
	slices.SortStableFunc(p.seats, func(x, y *seat) int {
		return cmp.Or(cmp.Compare(x.bucket.rank(), y.bucket.rank()), strings.Compare(x.bucket.limit.name, y.bucket.limit.name))
	})
	return p
}

// rank is where a bucket stands in the order in which places are taken. What is taken first may be kept for long, while the member waits for the
// next bucket, so that the bucket whose kept place harms least comes first: a place in the bucket of one value keeps no other value from starting,
// and a token that is kept unused is lost.
func (b *Bucket) rank() int {
	switch {
	case !b.Shared():
		return 0
	case b.limit.bounds.Rate <= 0:
		return 1
	}
	return 2
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

// Drop gives the places up for good. None is taken. The caller must call Pass of the buckets that it returns once it holds no lock.
func (p *Places) Drop() (pass []*Bucket) {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for _, s := range p.seats {
		if r := s.reserve; r != nil && r.within(p) {
			pass = r.release(pass)
		}
		if s.refs--; s.refs <= 0 && s.used == 0 {
			s.leave()
		}
	}
	return pass
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

// Take takes all places. If one has no room it returns its bucket, in whose line the member stands from now on. The caller must call Pass
// of the buckets in pass once it holds no lock: there may be room that somebody else is to have.
func (p *Places) Take(now time.Time) (full *Bucket, pass []*Bucket) {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	r := p.reserved()
	for i, s := range p.seats {
		b := s.bucket
		var ok bool
		if r.has(s) {
			if ok = b.roomReserved(now); ok {
				continue
			}
			pass = r.release(pass)
			r = nil
		}
		ok, _ = b.room(now)
		if others := len(b.line) > 0 && b.line[0] != s; ok && !others {
			continue
		}
		if p.turn == 0 {
			p.book.turns++
			p.turn = p.book.turns
		}
		alone := len(b.line) == 0
		b.stand(s, now)
		if !ok && alone {
			b.arm(now)
		}
		b.tell()
		if ok {
			pass = append(pass, b)
		}
		return b, p.keep(i, r, now, pass)
	}
	for _, s := range p.seats {
		b := s.bucket
		if !r.has(s) {
			s.occupy()
		} else if b.promised--; len(b.line) > 0 && b.rate.limits() {
			pass = append(pass, b) // nobody waits for a token that was reserved
		}
		b.rate.spend(now)
		if l := b.limit.slow; l != nil && l.left > 0 {
			l.left--
		}
		b.tell()
	}
	if p.turn = 0; r != nil {
		r.end()
		r.at.patience = 0
	}
	return nil, pass
}

// occupy takes a place. The lock is held.
func (s *seat) occupy() {
	b := s.bucket
	b.used++
	s.used++
	if len(b.line) > 1 && b.line[0] == s { // others want some, too
		b.line = append(b.line[1:], s)
	}
}

// vacate gives a place back. The lock is held.
func (s *seat) vacate() {
	s.bucket.used--
	if s.used--; s.refs <= 0 && s.used == 0 {
		s.leave()
	}
	s.bucket.tell()
}

// Free gives the places back. The buckets that it returns have somebody in their line: the caller must call their Pass once it holds no lock.
func (p *Places) Free(wanted []*Bucket) []*Bucket {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for _, s := range p.seats {
		if s.vacate(); len(s.bucket.line) > 0 && s.bucket.limit.bounds.Places > 0 {
			wanted = append(wanted, s.bucket)
		}
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
			if s.reserve != nil {
				pass = s.reserve.release(pass)
			}
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
