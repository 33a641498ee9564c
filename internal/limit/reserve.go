package limit

import (
	"slices"
	"time"
)

// reserve are places that are taken for something that does not start yet: it stands in the line of the next bucket. A member has one at
// each bucket at most, so that little is kept from others. It is given back when the bucket lets nothing start, when nothing of the
// member stands there any more, and when it was kept for as long as patience allows: whoever holds the next bucket may hang. Then others have their turn, and
// the next one is kept for twice as long.
type reserve struct {
	at    *seat   // where the member stands
	turn  uint64  // of what it is for
	seats []*seat // taken
	timer *time.Timer
}

const (
	patienceMin = time.Second
	patienceMax = time.Minute
)

// reserved is what is kept for one of the places, if they need all of it.
func (p *Places) reserved() *reserve {
	for _, s := range p.seats {
		if r := s.reserve; r != nil && r.within(p) {
			return r
		}
	}
	return nil
}

func (r *reserve) within(p *Places) bool {
	return !slices.ContainsFunc(r.seats, func(s *seat) bool { return !slices.Contains(p.seats, s) })
}

func (r *reserve) has(s *seat) bool { return r != nil && slices.Contains(r.seats, s) }

// keep reserves the places before the one that has no room. The lock is held.
func (p *Places) keep(n int, r *reserve, now time.Time, pass []*Bucket) []*Bucket {
	at := p.seats[n]
	if r != nil && r.at == at {
		return pass // as before
	}
	younger := at.reserve != nil && at.reserve.turn > p.turn // has what p is to have first
	if at.reserve != nil && !younger || p.stopped(now) || !slices.ContainsFunc(p.seats[:n], (*seat).contended) {
		if r != nil {
			pass = r.release(pass)
		}
		return pass
	}
	if younger {
		pass = at.reserve.release(pass)
	}
	kept := &reserve{at: at, turn: p.turn, seats: slices.Clone(p.seats[:n])}
	for _, s := range kept.seats {
		if r.has(s) {
			continue
		}
		s.occupy()
		s.bucket.promised++
		s.bucket.tell()
	}
	if r != nil {
		for _, s := range r.seats {
			if !kept.has(s) {
				pass = s.unreserve(pass)
			}
		}
		r.end()
	}
	at.reserve = kept
	kept.timer = time.AfterFunc(max(patienceMin, at.patience), kept.lapse)
	return pass
}

// contended tells whether what the member does not take may go to somebody who does not need the same buckets, or who is elsewhere.
func (s *seat) contended() bool {
	return len(s.bucket.seats) > 1 || !s.bucket.Shared() || s.bucket.limit.shared
}

// stopped tells whether one of the limits lets nothing start, or slows what starts. The lock is held.
func (p *Places) stopped(now time.Time) bool {
	return slices.ContainsFunc(p.seats, func(s *seat) bool {
		l := s.bucket.limit
		return l.closed != "" || l.valid != nil && !l.valid() || l.slow != nil && now.Before(l.slow.until)
	})
}

// lapse ends what was kept for too long.
func (r *reserve) lapse() {
	mu := &r.at.bucket.limit.book.mu
	mu.Lock()
	var pass []*Bucket
	if r.at.reserve == r {
		r.at.patience = min(2*max(patienceMin, r.at.patience), patienceMax)
		pass = r.release(nil)
	}
	mu.Unlock()
	passAll(pass)
}

// release gives back what is reserved. The lock is held.
func (r *reserve) release(pass []*Bucket) []*Bucket {
	r.end()
	for _, s := range r.seats {
		pass = s.unreserve(pass)
	}
	return pass
}

// end forgets that something is reserved. The lock is held.
func (r *reserve) end() {
	r.at.reserve = nil
	r.timer.Stop()
}

func (s *seat) unreserve(pass []*Bucket) []*Bucket {
	s.bucket.promised--
	if s.vacate(); len(s.bucket.line) > 0 {
		pass = append(pass, s.bucket)
	}
	return pass
}

// roomReserved tells whether what has a place reserved in the bucket may start. The lock is held.
func (b *Bucket) roomReserved(now time.Time) bool {
	l := b.limit
	ok, _ := b.rate.allows(1, now)
	return ok && l.closed == "" && (l.valid == nil || l.valid()) && l.slowUntil(now).IsZero()
}

// letGo releases what is reserved for those that stand at a limit that lets nothing start. The lock is held.
func (l *Limit) letGo() (pass []*Bucket) {
	if l.closed == "" {
		return nil
	}
	for _, b := range l.buckets {
		for _, s := range b.seats {
			if s.reserve != nil {
				pass = s.reserve.release(pass)
			}
		}
	}
	return pass
}
