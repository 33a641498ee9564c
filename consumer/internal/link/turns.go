package link

import (
	"slices"
	"sync"
)

// A pull for a few bytes brings no message. So when the link is so slow that the part of each puller is less than a pull is for,
// the pullers with a backlog take turns. One may ask when less than half of the limit is on its way to those that
// take turns; it may ask for more than is left then, or large messages would never come. Pullers without a backlog do not
// wait: they ask for their part of the limit and no more, because what their parked pulls bring comes at once when something is
// published, or when what arrived too late comes again.

// Puller is one durable that asks for messages. Its fields, and the methods of [Link] that take it, are for its pull loop.
type Puller struct {
	Wake    func() // has the pull loop ask soon; it is called with a lock and must not block
	Least   int    // bytes that a pull is for, or the next message would not fit
	Backlog bool   // more is coming, as far as the server told

	turning bool // it takes turns with the others
	inLine  bool // it waits for its turn
}

// InLine tells whether the puller waits for its turn.
func (p *Puller) InLine() bool { return p.inLine }

// Part is what one puller may ask for.
type Part struct {
	Most    int // bytes on their way to it
	Least   int // bytes that a pull is for
	byTurns bool
}

// Part is that of p, of so many pullers.
func (l *Link) Part(p *Puller, pullers int) Part {
	limit := l.Coming()
	part := limit / max(1, pullers)
	switch {
	case part >= 2*p.Least:
		return Part{part, p.Least, false}
	case limit >= MostComing || p.Backlog: // the link is not slow, or it waits for its turn
		return Part{2 * p.Least, p.Least, limit < MostComing}
	default:
		return Part{part, 1, false}
	}
}

// MayAsk reports whether p may ask for so many bytes more now, when so many are on their way to it. If not, it is woken when
// it is its turn. With more of 0 it does not want to ask.
func (l *Link) MayAsk(p *Puller, part Part, coming, more int) bool {
	if !part.byTurns {
		coming, more = 0, 0
	}
	may := true
	if part.byTurns || p.turning {
		may = l.turns.may(p, coming, more, l.Coming()) || !part.byTurns
	}
	p.turning, p.inLine = part.byTurns, part.byTurns && more > 0 && !may
	return may
}

// Leave is the end of a puller: nothing is on its way to it any more.
func (l *Link) Leave(p *Puller) { l.turns.may(p, 0, 0, l.Coming()) }

// turns is whose turn it is.
type turns struct {
	mu      sync.Mutex
	coming  map[*Puller]int // bytes
	total   int
	waiting []*Puller // the one that waits longest first
}

// may notes how many bytes are on their way to a puller that takes turns, and reports whether it may ask for more. If not, it
// is woken when it is its turn. With more of 0 it does not wait any longer.
func (t *turns) may(p *Puller, coming, more, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(p, coming)
	i := slices.Index(t.waiting, p)
	switch {
	case more == 0 && i >= 0:
		t.waiting = slices.Delete(t.waiting, i, i+1)
	case more > 0 && i < 0:
		t.waiting = append(t.waiting, p)
	}
	first := len(t.waiting) > 0 && t.waiting[0] == p
	granted := first && 2*t.total <= limit
	if granted {
		t.waiting = slices.Delete(t.waiting, 0, 1)
		t.note(p, coming+more)
	}
	if len(t.waiting) > 0 && t.waiting[0] != p && 2*t.total <= limit {
		t.waiting[0].Wake()
	}
	return granted
}

func (t *turns) note(p *Puller, coming int) {
	t.total += coming - t.coming[p]
	if coming == 0 {
		delete(t.coming, p)
		return
	}
	if t.coming == nil {
		t.coming = make(map[*Puller]int)
	}
	t.coming[p] = coming
}
