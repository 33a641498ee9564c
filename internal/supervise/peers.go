package supervise

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/relaymq/relay/internal/teeth"
)

// Instances of one service have a group each for a route, and all stand before the same endpoint. So that an outage costs as many
// questions as one instance would ask, and its end is known to all at once, a group tells the others what it learns, and heeds what
// they tell:
//
//   - Failures in a row, before they are enough to trip: all of them together trip the route.
//   - That the route, or a key, waits, or asks one message at a time. Where it flows, the first failure trips it. Where it waits, the next
//     question is put off: the others stand by for the one who asks.
//   - Questions of those who ask at a pace: they count for the pace of all.
//   - That a question succeeded. Whoever waits asks within spread.
//
// No state depends on hints. A hint that is lost costs questions. A wrong hint puts off a question for standByMost at most, or costs one.

// hintKind is what a [Hint] tells.
type hintKind string

// The hints there are.
const (
	ofFailing hintKind = "failing" // N runs in a row failed, of Keys
	ofWaits   hintKind = "waits"   // the next question is in Delay, or what is asked now may take so long
	ofAsked   hintKind = "asked"   // N messages were asked, and the route does not flow
	ofFlows   hintKind = "flows"   // a question succeeded
)

// Hint is what a group tells the groups of the same route in other processes; see [Options.Hint] and [Group.Hear].
type Hint struct {
	Kind hintKind `json:"kind"`
	// Key is the key that the hint is about. Nil means the route.
	Key []byte `json:"key,omitempty"`
	N   int    `json:"n,omitempty"`
	// Keys are hashes of some of the keys that failed.
	Keys []uint32 `json:"keys,omitempty"`
	// Delay is the time until the next question. Restarts is how many questions there were since the
	// route, or the key, flowed.
	Delay    time.Duration `json:"delay,omitempty"`
	Restarts int           `json:"restarts,omitempty"`
	// Mute says that no answer came at all. Judged says that the messages that were asked had failed before.
	Mute   bool `json:"mute,omitempty"`
	Judged bool `json:"judged,omitempty"`
}

const (
	// hintFrom is after how many failures in a row others are told, and again after as many more.
	hintFrom = 4
	// hintsPerSecond bounds what a group tells, but for the route's own waits and their ends.
	hintsPerSecond = 50
	// askedEvery is how often a group tells how many messages it asked.
	askedEvery = 50 * time.Millisecond
	// peersFor is for how long failures of others count.
	peersFor = 2 * time.Second
	// warnedFor is for how long the wait of a route elsewhere counts. Who waits there asks more often than that, and says so.
	warnedFor = 2 * rudeEvery
	// standByMost is for how long a group that waits lets others ask in its place.
	standByMost = time.Minute
	// spread is within what time those that wait ask when somebody else succeeded.
	spread = 200 * time.Millisecond
	// standBy is how much later than the one who asked last the others ask, at least, and up to twice as much.
	standBy = 250 * time.Millisecond
	// maxWarned bounds the keys of which others said that they wait.
	maxWarned = 10_000
)

// peers is what other groups told, and what this one told them.
type peers struct {
	*moment
	rows   map[string]row // failures in a row, by instance
	warned time.Time      // when somebody's route came to wait; zero: it flows as far as is known
	mute   bool           // then nobody got an answer
	keys   map[string]warning

	untold  []Hint
	telling bool // somebody tells them

	asked    int // not told yet
	askedAt  time.Time
	told     int // in this second
	second   time.Time
	question time.Time // the last one of this group
}

// warning is what others said of a key since something of it succeeded here.
type warning struct {
	at    time.Time
	n     int  // failures
	waits bool // it tripped
}

type row struct {
	n    int
	keys []uint32
	mute bool
	at   time.Time
}

// hint tells the others, if there is somebody to tell and this is not too much.
func (p *peers) hint(h Hint) {
	if p.opts.Hint == nil || teeth.Hints() {
		return
	}
	if p.now.Sub(p.second) >= time.Second {
		p.second, p.told = p.now, 0
	}
	if p.told++; p.told > hintsPerSecond && (h.Key != nil || h.Kind == ofAsked || h.Kind == ofFailing) {
		return
	}
	p.untold = append(p.untold, h)
	p.call(p.group.tellPeers)
}

// tellPeers tells hints in the order in which they came about, whichever turn's calls come first: when a question has succeeded, nobody is to
// hear afterwards that it is asked, and stand by.
func (g *Group) tellPeers() {
	t := g.lock()
	p := &t.route.peers
	for !p.telling && len(p.untold) > 0 {
		list := p.untold
		p.untold, p.telling = nil, true
		t.unlock()
		for _, h := range list {
			g.opts.Hint(h)
		}
		t = g.lock()
		p.telling = false
	}
	t.unlock()
}

// hintFailing tells of failures in a row that are not usual.
func (s *route) hintFailing() {
	e := &s.evidence
	if n := e.rhythm.since; n >= hintFrom && n%hintFrom == 0 && e.rhythm.overdue(maxOverdue) {
		s.peers.hint(Hint{Kind: ofFailing, N: n, Keys: e.hashes(), Mute: s.mute >= min(n, muteAfter)})
	}
}

// hintWaits tells that the route waits for its next question.
func (s *route) hintWaits() {
	s.peers.question = s.now
	s.peers.hint(Hint{Kind: ofWaits, Delay: s.until().Sub(s.now), Restarts: s.restarts, Mute: s.mute >= muteAfter})
}

// hintQuestion tells of a question of a route that asks one at a time. It may take longer than the others stand by after a wait.
func (s *route) hintQuestion() {
	s.peers.question = s.now
	s.peers.hint(Hint{Kind: ofWaits, Delay: probePatience, Restarts: s.restarts, Mute: s.mute >= muteAfter})
}

// hintAsked counts a question of a route that asks at a pace, and tells of several at once.
func (s *route) hintAsked(with past) {
	p := &s.peers
	p.question = s.now
	if with == failedBefore {
		p.hint(Hint{Kind: ofAsked, N: 1, Judged: true, Restarts: s.inquiry.agains})
		return
	}
	if p.asked++; s.now.Sub(p.askedAt) >= askedEvery {
		p.hint(Hint{Kind: ofAsked, N: p.asked})
		p.asked, p.askedAt = 0, s.now
	}
}

// hintKey tells that a key waits for its next question.
func (p *peers) hintKey(k *key) {
	if k.is(Waiting) {
		p.hint(Hint{Kind: ofWaits, Key: []byte(k.name), Delay: k.state.until().Sub(p.now), Restarts: k.restarts})
	}
}

// Hear takes a hint from the group of the same route in another process.
func (g *Group) Hear(from string, h Hint) {
	t := g.lock()
	if !t.closing && h.Delay >= 0 && h.N >= 0 {
		if h.Key != nil {
			name := string(h.Key)
			t.route.peers.hearOfKey(t.keys[name], name, h)
		} else {
			t.route.peers.hearOfRoute(t, from, h)
		}
		t.startAll()
	}
	t.unlock()
}

func (p *peers) hearOfRoute(t *turn, from string, h Hint) {
	s := &t.route
	q := &s.inquiry
	switch h.Kind {
	case ofFailing:
		if p.rows == nil || len(p.rows) > 1000 {
			p.rows = make(map[string]row)
		}
		p.rows[from] = row{h.N, h.Keys[:min(len(h.Keys), 2*hintFrom)], h.Mute, t.now}
	case ofWaits:
		p.warned, p.mute = t.now, h.Mute
		if w, waits := s.state.(*routeWaiting); waits && !q.careful {
			s.restarts = max(s.restarts, min(h.Restarts, 1<<20))
			w.putOff(t, min(h.Delay, rudeEvery))
		}
	case ofAsked:
		if s.is() != Probing || t.route.inquiry.oneByOne(t) {
			return
		}
		if h.Judged {
			q.agains = max(q.agains, min(h.Restarts, 1<<20))
			q.again = later(q.again, earlier(t.now.Add(q.againDelay(t.cfg)+standBy), p.question.Add(standByMost)))
			return
		}
		took := time.Duration(float64(min(h.N, 1000)) / q.pace(t.now) * float64(time.Second))
		q.next = earlier(later(q.next, t.now.Add(-atOnce)).Add(took), t.now.Add(time.Second))
	case ofFlows:
		p.warned = time.Time{}
		clear(p.rows)
		switch w := s.state.(type) {
		case *routeWaiting:
			if q.careful {
				return
			}
			s.restarts = 0
			w.until = earlier(w.until, later(t.now.Add(rand.N(spread)), s.notBefore))
			t.alarm.arm(w.until)
		case *routeProbing:
			q.next, q.again = t.now, t.now
			if w.running > 0 && t.route.inquiry.oneByOne(t) && !q.careful { // what hangs still was asked before
				s.beginRound("a question of another instance succeeded")
			}
			t.call(t.opts.More)
		default:
			t.endTrips()
		}
	}
}

// putOff makes a route that waits leave the next question to the instance that asked last. It does so for standByMost at most after this group
// asked last, or last said that it waits.
func (w *routeWaiting) putOff(t *turn, delay time.Duration) {
	until := earlier(t.now.Add(delay+standBy+rand.N(standBy)), t.route.peers.question.Add(standByMost))
	if until.After(w.until) || w.standBy > 0 {
		w.began, w.standBy = t.now, standBy+rand.N(standBy)
		w.until = later(w.until, until)
	}
}

// hearOfKey takes a hint about the key of that name; k is nil when there is none.
func (p *peers) hearOfKey(k *key, name string, h Hint) {
	var w *waiting
	if k != nil {
		w, _ = k.state.(*waiting)
	}
	switch {
	case h.Kind == ofFlows:
		delete(p.keys, name)
		if w != nil && !w.named && k.tripped {
			w.end = earlier(w.end, p.now.Add(rand.N(spread)))
			k.until = w.end
			p.alarm.wake(k, w.end)
		}
	case w != nil && h.Kind == ofWaits:
		until := earlier(p.now.Add(min(h.Delay, p.cfg.Restart.Max)+standBy+rand.N(standBy)), k.failedAt.Add(standByMost))
		if !w.named && until.After(w.end) {
			k.restarts = max(k.restarts, min(h.Restarts, 1<<20))
			w.end, k.until = until, until
			p.alarm.wake(k, until)
		}
	case w == nil && (h.Kind == ofWaits || h.Kind == ofFailing):
		if p.keys == nil || len(p.keys) >= maxWarned {
			p.keys = make(map[string]warning)
		}
		of := p.keys[name]
		if p.now.Sub(of.at) >= peersFor {
			of.n = 0
		}
		p.keys[name] = warning{p.now, of.n + min(h.N, hintFrom), of.waits || h.Kind == ofWaits}
	}
}

// elsewhere tells whether the key waits on another instance, or failed so often here and there that it trips.
func (p *peers) elsewhere(k *key) bool {
	w, ok := p.keys[k.name]
	if trip := *p.cfg.TripAfter; ok && trip > 0 {
		age := p.now.Sub(w.at)
		return w.waits && age < p.cfg.Window || age < peersFor && k.failures+w.n >= trip
	}
	return false
}

// hintKeyFails tells of failures of a key in a row.
func (p *peers) hintKeyFails(k *key) {
	switch {
	case !k.several || *p.cfg.TripAfter < 3:
	case k.failures == 2:
		p.hint(Hint{Kind: ofFailing, Key: []byte(k.name), N: 2})
	case k.failures > 2:
		p.hint(Hint{Kind: ofFailing, Key: []byte(k.name), N: 1})
	}
}

// succeededHere ends what others said of failures: here messages succeed.
func (p *peers) succeededHere(key string) {
	if len(p.keys) > 0 {
		delete(p.keys, key)
	}
	if len(p.rows) > 0 {
		clear(p.rows)
	}
	p.warned = time.Time{}
}

// peersTrip tells whether the failures here and those of others are enough to trip the route together.
func (s *route) peersTrip() bool {
	e, p := &s.evidence, &s.peers
	if e.of == 0 || e.rhythm.since == 0 || !e.rhythm.overdue(maxOverdue) {
		return false
	}
	mute := p.mute
	if p.warned.IsZero() || s.now.Sub(p.warned) >= warnedFor {
		n, keys := e.rhythm.since, make(map[uint32]struct{})
		mute = true
		for _, r := range p.rows {
			if s.now.Sub(r.at) < peersFor {
				n += r.n
				mute = mute && r.mute
				for _, h := range r.keys {
					keys[h] = struct{}{}
				}
			}
		}
		for _, h := range e.hashes() {
			keys[h] = struct{}{}
		}
		if n == e.rhythm.since || n < e.need || len(keys) < e.keys {
			return false
		}
	}
	if mute && s.mute > 0 {
		s.mute = max(s.mute, muteAfter)
	}
	return true
}

// hashes returns the hashes of some of the keys that failed.
func (e *evidence) hashes() (list []uint32) {
	seen := make(map[string]struct{})
	for _, c := range e.last {
		if _, known := seen[c.key]; c.failed && !known {
			seen[c.key] = struct{}{}
			h := fnv.New32a()
			_, _ = h.Write([]byte(c.key))
			if list = append(list, h.Sum32()); len(list) >= max(e.keys, hintFrom) {
				return list
			}
		}
	}
	return list
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
