package supervise

import (
	"cmp"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/limit"
)

// Limits are bounds that a group shares with others: what starts needs a place in each, beside a slot.
type Limits struct {
	Book *limit.Book
	// Name of the route, which status names as the holder of places.
	Name string
	// Always is what each message needs.
	Always []limit.Need
	// Also is what a message needs beside that: the same for all messages of its key. It must not block. May be nil.
	Also func(Work) []limit.Need
}

// limited is what a group knows of its limits, and the keys that wait for room in them. A key that finds none waits at the first bucket
// that is full, and is in no other queue for slots meanwhile; the group stands in the line of that bucket.
type limited struct {
	*moment
	Limits
	member  *limit.Member
	common  *limit.Places // of all keys; nil with Also
	waiting map[*limit.Bucket]*limitLine
	turns   uint64
}

// limitLine is the keys that wait for room in a bucket.
type limitLine struct {
	keys  queue
	since time.Time
}

func newLimited(opts *Limits, of *moment) *limited {
	if opts == nil {
		return nil
	}
	member := &limit.Member{Name: opts.Name, Offer: of.group.offer, Waiting: of.group.waitsFor}
	l := &limited{moment: of, Limits: *opts, member: member, waiting: make(map[*limit.Bucket]*limitLine)}
	if opts.Also == nil {
		l.common = opts.Book.Places(l.member, opts.Always...)
	}
	return l
}

// takes takes the places that a message of k needs to start. If there is no room, it returns the first bucket that is full, for
// which k waits from now on.
func (l *limited) takes(k *key, m *Message) (full *limit.Bucket) {
	if l == nil {
		return nil
	}
	places := l.placesOf(k, m)
	if full = l.behind(k, places); full == nil {
		var pass []*limit.Bucket
		full, pass = places.Take(l.now)
		l.pass(pass)
	}
	if full == nil {
		k.turn = 0
		return nil
	}
	p := l.waiting[full]
	if p == nil {
		p = &limitLine{queue{mark: markLimited}, l.now}
		l.waiting[full] = p
	}
	l.stand(p, k)
	return full
}

// behind is a bucket at which keys wait that are to have room before k; nil if there is none. The group stands in its line.
func (l *limited) behind(k *key, places *limit.Places) *limit.Bucket {
	if len(l.waiting) == 0 {
		return nil
	}
	for b := range places.Buckets() {
		if p := l.waiting[b]; p != nil && p.keys.len() > 0 && (k.turn == 0 || p.keys.waiting()[0].turn < k.turn) {
			return b
		}
	}
	return nil
}

// stand puts k among the keys that wait for room in a bucket, in the order in which they began to wait for any: whatever needs several
// limits would else be the last one at each of them.
func (l *limited) stand(p *limitLine, k *key) {
	if k.turn == 0 {
		l.turns++
		k.turn = l.turns
	}
	p.keys.insert(k, func(x, y *key) int { return cmp.Compare(x.turn, y.turn) })
}

// places are what a message needs, which depends on it.
func (l *limited) places(m *Message) *limit.Places {
	return l.Book.Places(l.member, append(slices.Clip(l.Always), l.Also(m.Work)...)...)
}

// givePlaces gives back what a run had taken.
func (l *limited) givePlaces(k *key) {
	if l == nil {
		return
	}
	l.pass(k.places.Free(nil))
}

// pass has others look whether they can start now.
func (l *limited) pass(buckets []*limit.Bucket) {
	for _, b := range buckets {
		l.call(b.Pass)
	}
}

// dropPlaces is for a key that is forgotten. It waits for no room any more.
func (l *limited) dropPlaces(k *key) {
	if k.waitsForLimit() {
		for b := range k.places.Buckets() {
			if p := l.waiting[b]; p != nil && p.keys.remove(k) {
				if p.keys.len() == 0 {
					delete(l.waiting, b)
				}
				break
			}
		}
	}
	if k.places != nil && k.places != l.common {
		l.pass(k.places.Drop()) // its runs give back what they have
	}
}

// waitsForLimit tells whether k is not asked because a limit has no room for it.
func (k *key) waitsForLimit() bool { return k.marks&markLimited != 0 }

// offer starts one message that waits for room in the bucket, if it can now. It tells whether more wait; those that cannot start for
// another reason are asked again when that changes.
func (g *Group) offer(b *limit.Bucket) (more bool) {
	t := g.lock()
	var r *run
	if p := t.limits.waiting[b]; p != nil {
		for n := p.keys.len(); n > 0 && p.keys.len() > 0 && r == nil; n-- { // each key once: when the room is gone by now, a key comes to wait here again
			k := p.keys.pop()
			if !k.gone {
				t.makeReady(k)
			}
			if !t.standsStill() && t.slots.busy() < t.slots.open() {
				r = t.next()
			}
		}
		if more = p.keys.len() > 0; !more {
			delete(t.limits.waiting, b)
		}
	}
	t.aside.offerAt(b)
	if r != nil {
		g.goes.Add(1)
		t.startAll() // its key is not among those that wait any more, and there may be more room
	}
	t.window.tellMore(t)
	t.unlock()
	if r != nil {
		go g.work(r)
	}
	return more
}

// waitsFor tells how many messages would start now if the bucket had room; it stops counting at most.
func (g *Group) waitsFor(b *limit.Bucket, most int) (n int) {
	t := g.lock()
	defer t.unlock()
	p := t.limits.waiting[b]
	if p == nil || t.standsStill() {
		return 0
	}
	most = min(most, t.slots.open()-t.slots.busy())
	for _, k := range p.keys.waiting() {
		if n >= most {
			break
		}
		if !k.gone {
			n += min(k.messages(), max(0, t.slots.limit(k)-k.runs))
		}
	}
	return min(n, max(0, most))
}

// leave is for a group that starts nothing any more.
func (l *limited) leave() {
	if l != nil {
		l.call(func() { l.Book.Leave(l.member) })
	}
}

// spill moves messages that wait for a bucket of theirs from a full window to the stash, so that those of others can come. A limit that all
// messages of the route need is another matter: whatever came would have to wait, too.
func (l *limited) spill(t *turn) {
	if l == nil {
		return
	}
	for b, p := range l.waiting {
		if b.Shared() {
			continue
		}
		for _, k := range p.keys.waiting() {
			if !k.gone {
				k.stashWindow(t)
			}
		}
	}
}

// Limited is what waits for room in a bucket of a limit.
type Limited struct {
	Limit  string // its name
	Bucket string // the name with the value, if all messages of the route do not need the same one
	Shared bool   // all messages of the route need it
	Since  time.Time
	Keys   int
	Held   int // messages of these
}

// status lists the buckets that keys wait for, longest first.
func (l *limited) status() (list []Limited) {
	if l == nil {
		return nil
	}
	for b, p := range l.waiting {
		s := Limited{Limit: b.Limit(), Bucket: b.Name(), Shared: b.Shared(), Since: p.since}
		for _, k := range p.keys.waiting() {
			if n := k.messages(); n > 0 && !k.gone {
				s.Keys++
				s.Held += n
			}
		}
		if s.Keys > 0 {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(x, y Limited) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Bucket, y.Bucket))
	})
	return list
}

// eachKey goes through the keys that wait for a bucket which not all messages of the route need.
func (l *limited) eachKey(each func(*key, *limit.Bucket, time.Time)) {
	if l == nil {
		return
	}
	for b, p := range l.waiting {
		for _, k := range p.keys.waiting() {
			if !b.Shared() && !k.gone && k.flows() && k.messages() > 0 {
				each(k, b, p.since)
			}
		}
	}
}
