package fleet

import (
	"context"
	"encoding/json"
	"time"
)

// Demand is what an instance needs of a limit now.
type Demand struct {
	Used   int  // parts in use
	Hungry bool // somebody waits for more
}

// Parts is a limit that the instances of the fleet share. The parts of each instance are in one document, which an instance changes only for
// itself and for sessions that are over, by compare-and-set: so all that live together never have more than there are. Instances spend
// their parts without asking anybody, as long as their session is valid ([Fleet.Valid]).
type Parts struct {
	// Name of the document: letters, digits, -, _ and dots.
	Name string
	// Total is how many parts there are. It may change.
	Total func() int
	// Demand is asked often; it must not block.
	Demand func() Demand
	// Allow is told how many parts may be used from now on; it must not block. What is in use beyond that may end.
	Allow func(n int, others map[string]int)
	// Changed gets a value when the demand has changed.
	Changed <-chan struct{}
}

const (
	// shareEvery is the shortest time between two looks at a limit, and renewEvery between two writes of the session for it.
	shareEvery = 5 * time.Millisecond
	renewEvery = 20 * time.Millisecond
	// turnEvery is how long a part that is left over stays where it is, while more want it.
	turnEvery = 500 * time.Millisecond
	// hungryFor is for how long an instance counts as hungry that was.
	hungryFor = turnEvery
)

// allotments is the document of a limit.
type allotments struct {
	Format int            `json:"format"`
	Have   map[string]int `json:"have"` // by session

	revision uint64
}

// Share keeps this instance's part of a limit until ctx is done. What it has then goes with its session.
func (f *Fleet) Share(ctx context.Context, l Parts) {
	defer f.want(l.Name, 0)
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	var p portion
	var own allotments // as this instance wrote it last
	var hungry, renewed time.Time
	told := false // to the others: that this instance is hungry
	for ctx.Err() == nil {
		changed := f.await()
		total, demand := l.Total(), l.Demand()
		now := time.Now()
		if demand.Hungry {
			hungry = now
		}
		want := demand.Used
		if now.Sub(hungry) < hungryFor {
			want = total
		}
		f.want(l.Name, want)
		if starves := want == total; starves != told && now.Sub(renewed) >= renewEvery {
			renewed, told = now, starves
			f.Renew()
		}
		s, ok := f.look(&p, l.Name, total, &own, want)
		if !ok {
			p = portion{}
			l.Allow(0, nil)
		} else {
			p.step()
			l.Allow(p.bound, f.named(p.have, s.id))
			p.used = l.Demand().Used // nothing that is above the bound has begun since
			if have := p.step(); have != nil {
				if next, ok := f.allot(ctx, s, l.Name, allotments{Format: 1, Have: have, revision: p.revision}); ok {
					own = next
					continue // what it means
				}
				p.doubt(have[s.id])
			}
		}
		pause := time.NewTimer(shareEvery)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		select {
		case <-ctx.Done():
		case <-changed:
		case <-l.Changed:
		case <-tick.C:
		}
	}
}

// want tells the others what this instance wants of a limit, with the next write of its session.
func (f *Fleet) want(limit string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wants[limit] = n; n == 0 {
		delete(f.wants, limit)
	}
}

// look fills p with what the bucket has told, for the session of this instance; ok is false while it has none that is valid.
func (f *Fleet) look(p *portion, limit string, total int, own *allotments, want int) (s *session, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s = f.session; s == nil || !s.valid() || !f.view.whole || time.Now().Before(f.anew) {
		return nil, false
	}
	if p.id != s.id { // what it wrote before may have been in a bucket that is there no more
		*p, *own = portion{id: s.id}, allotments{}
	}
	doc := f.view.limits[limit]
	if own.revision > doc.revision {
		doc = *own
	}
	now := time.Now()
	p.total, p.have, p.revision, p.epoch = total, doc.Have, doc.revision, now.UnixMilli()/turnEvery.Milliseconds()
	p.wants = map[string]int{s.id: want}
	for id, m := range f.view.sessions {
		if id != s.id {
			p.wants[id] = m.Wants[limit]
		}
	}
	p.over = make(map[string]bool)
	for id := range doc.Have {
		p.over[id] = id != s.id && f.view.over(id, f.cfg.Lease, now)
	}
	return s, true
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
