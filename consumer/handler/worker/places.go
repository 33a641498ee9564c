package worker

import (
	"context"
	"slices"
	"sync"
	"time"
)

// places are the processes of a pool as places for messages. A process has up to in_flight messages at once, or one suspect alone.
//
// Suspects have a process of their own. They may also have processes that are idle, up to half of them; ordinary messages keep the rest. When more
// suspects wait to be tried than one crash makes, or one waits longer than patience, many messages are bad. Then each process takes one message at a
// time, suspects and others in turn. So bad messages do not make suspects of good ones faster than suspects can be tried.
type places struct {
	inFlight int

	mu     sync.Mutex
	shared []*slot
	solo   *slot // for suspects only
	alone  int   // of the shared ones, how many a suspect has
	lines  [classes][]*waiter
	next   class // whose turn it is
}

// class of a message, by what is known of it.
type class uint8

const (
	ordinary class = iota
	untried        // a suspect that has not run alone yet
	tried          // a suspect that has, and failed
	classes
)

// patience is how long suspects wait before they may share the ordinary processes in turn.
const patience = time.Second

// slot is the place of a process.
type slot struct {
	mu    sync.Mutex
	child *child // nil: none was needed yet

	// Under places.mu:
	n     int  // messages that have it
	alone bool // one has it alone
}

// waiter is a message that waits for a process.
type waiter struct {
	since time.Time
	got   chan *slot
}

func newPlaces(processes, inFlight int) *places {
	p := &places{inFlight: inFlight, solo: new(slot)}
	for range processes {
		p.shared = append(p.shared, new(slot))
	}
	return p
}

// take waits for a place. Without one the error says why ctx has ended.
func (p *places) take(ctx context.Context, of class) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	if len(p.lines[of]) == 0 {
		if sl := p.fit(of); sl != nil {
			p.mu.Unlock()
			return sl, nil
		}
	}
	w := &waiter{since: time.Now(), got: make(chan *slot, 1)}
	p.lines[of] = append(p.lines[of], w)
	p.mu.Unlock()
	var late <-chan time.Time
	if of == untried {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case sl := <-w.got:
			return sl, nil
		case <-late: // an idle process may do now
			p.mu.Lock()
			p.grant()
			p.mu.Unlock()
		case <-ctx.Done():
			p.leave(of, w)
			return nil, context.Cause(ctx)
		}
	}
}

// leave takes a waiter out of its line, or gives back what it has got meanwhile.
func (p *places) leave(of class, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.lines[of], w); i >= 0 {
		p.lines[of] = slices.Delete(p.lines[of], i, i+1)
		p.grant()
		return
	}
	p.free(<-w.got)
}

// give gives a place back.
func (p *places) give(sl *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(sl)
}

// free is give for who holds the lock.
func (p *places) free(sl *slot) {
	sl.n--
	if sl.alone && sl != p.solo {
		p.alone--
	}
	sl.alone = false
	p.grant()
}

// grant gives those that wait what there is, each class in turn.
func (p *places) grant() {
	for inVain := class(0); inVain < classes; inVain++ {
		of := p.next
		p.next = (p.next + 1) % classes
		if p.grantFirst(of) {
			inVain = 0
		}
	}
}

// grantFirst gives the first that waits in a line its place, if there is one for it.
func (p *places) grantFirst(of class) bool {
	line := p.lines[of]
	if len(line) == 0 {
		return false
	}
	sl := p.fit(of)
	if sl == nil {
		return false
	}
	line[0].got <- sl
	p.lines[of] = line[1:]
	return true
}

// fit takes a place for a message of that class, if there is one now.
func (p *places) fit(of class) *slot {
	crowded := p.crowded()
	switch {
	case of == ordinary && crowded:
		return p.occupy(p.emptiest(1), false)
	case of == ordinary:
		return p.occupy(p.emptiest(p.inFlight), false)
	case p.solo.n == 0:
		return p.occupy(p.solo, true)
	case crowded && of == untried, !crowded && p.alone < len(p.shared)/2:
		return p.occupy(p.emptiest(1), true)
	}
	return nil
}

// emptiest is the shared place with the fewest messages, below most; nil when there is none.
func (p *places) emptiest(most int) (best *slot) {
	for _, sl := range p.shared {
		if !sl.alone && sl.n < most {
			best, most = sl, sl.n
		}
		if most == 0 {
			break
		}
	}
	return best
}

// occupy notes that a message has a place, alone or not. Nil stays nil.
func (p *places) occupy(sl *slot, alone bool) *slot {
	if sl == nil {
		return nil
	}
	sl.n++
	if sl.alone = alone; alone && sl != p.solo {
		p.alone++
	}
	return sl
}

// crowded tells whether so many suspects wait that each process takes one message at a time.
func (p *places) crowded() bool {
	line := p.lines[untried]
	return len(line) > p.inFlight || len(line) > 0 && time.Since(line[0].since) >= patience
}

// isCrowded is crowded for who does not hold the lock.
func (p *places) isCrowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crowded()
}

// soloFree tells whether no suspect has the process for suspects.
func (p *places) soloFree() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.solo.n == 0
}
