package link

import (
	"testing"
	"time"
)

// pulling is a puller that counts how often it was woken.
type pulling struct {
	Puller
	link    *Link
	pullers int
	woken   int
}

// pullers are n with a backlog on a link with this limit.
func pullers(n int, limit int64) (l *Link, list []*pulling) {
	l = New(30 * time.Second)
	l.limit.Store(limit)
	for range n {
		p := &pulling{link: l, pullers: n}
		p.Puller = Puller{Wake: func() { p.woken++ }, Least: LeastPull, Backlog: true}
		list = append(list, p)
	}
	return l, list
}

// ask is what a pull is for with these bytes on their way; 0: it may not ask.
func (p *pulling) ask(coming int) int {
	part := p.link.Part(&p.Puller, p.pullers)
	if !p.link.MayAsk(&p.Puller, part, coming, part.Least) {
		return 0
	}
	return part.Least
}

// Each of 20 durables had 256 KiB on the way, whatever the link brought.
func TestLink_regressionSourcesShareTheLimitOfASlowLink(t *testing.T) {
	const limit = 470 << 10
	_, list := pullers(20, limit)
	coming, asked := make([]int, len(list)), make([]int, len(list))
	list[7].Least = 4 << 20 // the next message is larger than the limit
	for range 10 * len(list) {
		total := 0
		for i, s := range list {
			if n := s.ask(coming[i]); n > 0 {
				coming[i] += n
				asked[i]++
			}
			total += coming[i]
		}
		if most := limit/2 + list[7].Least; total > most || coming[7] == 0 && total > limit/2+LeastPull {
			t.Fatalf("%d bytes are on their way", total)
		}
		clear(coming) // all has come
	}
	for i, n := range asked {
		if n < 10 {
			t.Errorf("source %d asked %d times", i, n)
		}
	}
}

func TestLink_anIdleSourceDoesNotWaitForItsTurn(t *testing.T) {
	l, list := pullers(20, 470<<10)
	for _, s := range list {
		s.ask(0)
	}
	idle := list[19]
	idle.Backlog = false
	part := l.Part(&idle.Puller, len(list))
	if part.byTurns || part.Most != 470<<10/20 {
		t.Errorf("an idle source may ask for %d bytes, by turns %v", part.Most, part.byTurns)
	}
	if !l.MayAsk(&idle.Puller, part, 0, part.Most/2) {
		t.Error("an idle source waits")
	}
	if l.limit.Store(MostComing); list[5].ask(0) == 0 {
		t.Error("a source waits for its turn on a fast link")
	}
}

// Who waits longest is woken once enough has come, or once who was before it wants nothing more.
func TestLink_theNextSourceIsWoken(t *testing.T) {
	l, list := pullers(3, LeastPull)
	a, b, c := list[0], list[1], list[2]
	if a.ask(0) == 0 || b.ask(0) != 0 || c.ask(0) != 0 {
		t.Fatal("not the first one alone may ask")
	}
	turn := Part{2 * LeastPull, LeastPull, true}
	l.MayAsk(&a.Puller, turn, LeastPull/2, 0)
	if b.woken != 1 || c.woken != 0 {
		t.Error("half has come, and not the next one was woken")
	}
	l.MayAsk(&b.Puller, Part{}, 0, 0)
	if c.woken != 1 {
		t.Error("the next one wants nothing, and the one behind it was not woken")
	}
}
