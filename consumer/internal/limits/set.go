package limits

import (
	"sync"

	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/subject"
)

// noPart is why nothing starts under a limit of the service at first.
const noPart = "this instance has no part of it yet"

// Set is the limits of a process.
type Set struct {
	book    *limit.Book
	changed chan struct{} // holds a value when limits have changed

	mu     sync.Mutex
	limits map[string]Limit // guarded by mu
}

// NewSet returns one with these limits.
func NewSet(limits map[string]Limit) *Set {
	s := &Set{book: limit.NewBook(), changed: make(chan struct{}, 1)}
	s.Replace(limits)
	return s
}

// Book is where places under the limits are taken.
func (s *Set) Book() *limit.Book { return s.book }

// Now are the limits that routes may share now.
func (s *Set) Now() map[string]Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits
}

// Own is the limit of a route alone; nil without one.
func (s *Set) Own(route string) *limit.Limit { return s.book.Get(OwnName(route)) }

// SetOwn has the limit of a route alone hold.
func (s *Set) SetOwn(own Own) { s.book.Set(OwnName(own.Route), own.Bounds) }

// RemoveOwn ends the limit of a route alone.
func (s *Set) RemoveOwn(route string) { s.book.Remove(OwnName(route)) }

// Replace has these limits hold, and no others that routes share.
func (s *Set) Replace(limits map[string]Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.limits {
		if _, stays := limits[name]; !stays {
			s.book.Remove(name)
		}
	}
	for name, l := range limits {
		s.set(name, l)
	}
	s.limits = limits
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// set makes a limit, or changes it. Of one that all instances share this one has nothing at first, and then its part: see Share. The lock is
// held.
func (s *Set) set(name string, l Limit) {
	in := s.book.Get(name)
	if !l.divided() {
		in = s.book.Set(name, l.Bounds())
		in.Fence(nil)
		in.Own(l.Bounds())
	} else if in == nil {
		in = s.book.Set(name, l.Bounds())
		in.Close(noPart)
	} else if !s.limits[name].divided() {
		in.Close(noPart)
	}
}

// plan makes a limit of a change that is not accepted yet.
func (s *Set) plan(name string, l Limit) *limit.Limit {
	in := s.book.Plan(name, l.Bounds())
	if l.divided() {
		in.Close(noPart)
	}
	return in
}

// Needs is what each message of a route needs a place of: always, and because of its subject. Nil for nothing. It reads limits, which may hold only after
// a reload: one of them that does not hold yet is planned.
func (s *Set) Needs(r Route, limits map[string]Limit) (always []limit.Need, also func(subject string) []limit.Need) {
	type template struct {
		limit *limit.Limit
		per   subject.Template
	}
	var per []template
	for _, name := range r.Limits {
		l, known := limits[name]
		if !known {
			continue // a fault, which Check tells
		}
		in := s.book.Get(name)
		if in == nil {
			in = s.plan(name, l)
		}
		if l.Per == "" {
			always = append(always, limit.Need{Limit: in})
			continue
		}
		t, _ := subject.ParseTemplate(l.Per) // validated
		per = append(per, template{in, t})
	}
	if own := r.Own; own != nil {
		always = append(always, limit.Need{Limit: s.book.Plan(OwnName(own.Route), own.Bounds)}) // changed by SetOwn
	}
	if len(per) == 0 {
		return always, nil
	}
	return always, func(subject string) (needs []limit.Need) {
		for _, p := range per {
			value, err := p.per.Expand(subject)
			if err != nil {
				value = subject // replayed from another route
			}
			needs = append(needs, limit.Need{Limit: p.limit, Value: value})
		}
		return needs
	}
}
