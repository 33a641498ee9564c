package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// Demand is what an instance needs of a limit now.
type Demand struct {
	Want  int       // parts that would be in use if there were enough
	Since time.Time // somebody has been waiting for more; zero: nobody is
}

// Parts is a limit that the instances of the fleet share. The parts of each instance are in one document, by compare-and-set: an instance takes
// what is free or was that of a session that is over, and gives away only its own. So all that live together never have more than there
// are. Instances spend their parts without asking anybody, as long as their session is valid ([Fleet.Valid]).
type Parts struct {
	// Name of the document: letters, digits, -, _ and dots.
	Name string
	// Total is how many parts there are. It may change.
	Total func() int
	// Demand and Used, which is the parts in use, are asked often; they must not block.
	Demand func() Demand
	Used   func() int
	// Allow is told how many parts may be used from now on; it must not block. What is in use beyond that may end.
	Allow func(n int, others map[string]int)
	// Changed gets a value when the demand has changed.
	Changed <-chan struct{}
}

const (
	// shareEvery is the shortest time between two looks at a limit.
	shareEvery = time.Millisecond
	// turnEvery is how long an instance keeps a part that is left over while it has use for it and others want it, too.
	turnEvery = 100 * time.Millisecond
	// hungerMin is for how long somebody must have been waiting before an instance that has parts asks for more: most often one of its own is
	// free before that.
	hungerMin = 2 * time.Millisecond
	// tellEvery is the shortest time between two words to the others of how much an instance wants, and tellAgain the time after which it
	// says again that it wants more: words may be lost.
	tellEvery, tellAgain = 5 * time.Millisecond, 100 * time.Millisecond
)

// allotments is the document of a limit.
type allotments struct {
	Format int            `json:"format"`
	Have   map[string]int `json:"have"` // by session

	revision uint64
}

// Share keeps this instance's part of a limit until ctx is done. What it has then goes with its session.
func (f *Fleet) Share(ctx context.Context, l Parts) {
	defer f.want(l.Name, 0, time.Time{})
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	var p portion
	var own allotments // as this instance wrote it last
	for ctx.Err() == nil {
		changed := f.Changed()
		s, again := f.look(&p, &own, l)
		if s == nil {
			p = portion{}
			l.Allow(0, nil)
		} else {
			p.step()
			l.Allow(p.bound, f.named(p.have, s.id))
			p.used = l.Used() // nothing that is above the bound has begun since
			have := p.step()
			next := p.have[s.id]
			if have != nil {
				next = have[s.id]
			}
			if wait := f.tell(&p, l.Name, next); wait > 0 && (again == 0 || wait < again) {
				again = wait
			}
			if have != nil {
				if next, ok := f.allot(ctx, s, l.Name, allotments{Format: 1, Have: have, revision: p.revision}); ok {
					own = next
					continue // what it means
				}
				p.doubt(have[s.id])
			}
		}
		transient.Pause(ctx, shareEvery)
		var later <-chan time.Time
		if again > 0 {
			later = time.After(again)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-l.Changed:
		case <-later:
		case <-tick.C:
		}
	}
}

// look fills p with what the bucket and the others have told, for the session of this instance; s is nil while it has none that is valid. Again, if
// it is not 0, is after what time to look even if nothing happens.
func (f *Fleet) look(p *portion, own *allotments, l Parts) (s *session, again time.Duration) {
	total, demand := l.Total(), l.Demand()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s = f.session; s == nil || !s.valid() || !f.view.whole || time.Now().Before(f.anew) {
		return nil, 0
	}
	if p.id != s.id { // what it wrote before may have been in a bucket that is there no more
		*p, *own = portion{id: s.id}, allotments{}
	}
	doc := f.view.limits[l.Name]
	if own.revision > doc.revision {
		doc = *own
	}
	now := time.Now()
	p.total, p.have, p.revision = total, doc.Have, doc.revision
	mine := p.have[s.id]
	if mine > p.had {
		p.gained = now
	}
	p.had = mine

	want, since := min(demand.Want, total), demand.Since
	if waited := now.Sub(since); want > mine && mine > 0 && waited < hungerMin {
		want, again = mine, hungerMin-waited
	}
	if since.Before(p.gained) && !since.IsZero() {
		since = p.gained // it has had its turn since
	}
	p.wants = map[string]int{s.id: want}
	waiting := make(map[string]time.Time)
	for id, m := range f.view.sessions {
		if id != s.id {
			p.wants[id], waiting[id] = f.wish(m, l.Name)
		}
	}
	line := slices.SortedFunc(maps.Keys(waiting), func(a, b string) int {
		return cmp.Or(waiting[a].Compare(waiting[b]), strings.Compare(a, b))
	})
	place := 0
	switch last := append(slices.Clone(line), s.id); {
	case demand.Since.IsZero():
		place = len(line)
	case mine <= fairShares(total, p.wants, last)[s.id]: // it has nothing of what is left over
		place = len(line) - len(slices.DeleteFunc(slices.Clone(line), func(id string) bool { return waiting[id].Before(since) }))
	case now.Sub(p.gained) >= turnEvery:
		place, since = len(line), now
	}
	p.line = slices.Insert(line, place, s.id)
	f.setWant(l.Name, want, since)
	p.over = make(map[string]bool)
	for id := range doc.Have {
		p.over[id] = id != s.id && f.view.over(id, f.cfg.Lease, now)
	}
	return s, again
}

// named is what the other instances have, by their names.
func (f *Fleet) named(have map[string]int, own string) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make(map[string]int)
	for id, n := range have {
		if m, lives := f.view.sessions[id]; lives && id != own {
			names[m.Instance] += n
		}
	}
	return names
}

// allot writes the document of a limit.
func (f *Fleet) allot(ctx context.Context, s *session, limit string, doc allotments) (allotments, bool) {
	data, err := json.Marshal(doc)
	if err != nil {
		return doc, false
	}
	call, cancel := context.WithTimeout(ctx, f.cfg.Lease/2)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if doc.revision, err = f.kv.Update(call, limitPrefix+limit, data, doc.revision); err != nil {
		return doc, false
	}
	return doc, true
}
