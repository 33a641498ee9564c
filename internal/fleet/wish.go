package fleet

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
)

// wish is what an instance wants of a limit.
type wish struct {
	Session string `json:"session"`
	N       uint64 `json:"n"` // grows with each word of the session
	Limit   string `json:"limit"`
	Want    int    `json:"want"`
	Waited  int64  `json:"waited,omitempty"` // for so many microseconds somebody has been waiting

	since time.Time
}

// wishes are what this instance wants of limits, and what the others said that they want. Each says it with the record of its session, which the
// watch tells of. Between two writes of that, it says it by a message to the inbox of each of the others: it takes less than a millisecond, and
// nothing but speed depends on it. All is under the lock of the fleet.
type wishes struct {
	own   map[string]wish            // by limit
	told  map[string]wish            // what the others know of that
	n     uint64                     // of the last word
	heard map[string]map[string]wish // by session and limit
}

func newWishes() wishes {
	return wishes{own: make(map[string]wish), told: make(map[string]wish), heard: make(map[string]map[string]wish)}
}

// want sets what this instance wants of a limit.
func (f *Fleet) want(limit string, n int, since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setWant(limit, n, since)
}

func (f *Fleet) setWant(limit string, n int, since time.Time) {
	if n == 0 {
		delete(f.wishes.own, limit)
		return
	}
	f.wishes.own[limit] = wish{Want: n, since: since}
}

// recorded is what the record of the session says of wishes from now on. f.mu is held.
func (w *wishes) recorded(r *record, now time.Time) {
	r.Told, r.Wants, r.Waited = w.n, make(map[string]int), make(map[string]int64)
	for limit, own := range w.own {
		if r.Wants[limit] = own.Want; !own.since.IsZero() {
			r.Waited[limit] = now.Sub(own.since).Microseconds()
		}
	}
	w.told = maps.Clone(w.own)
	for limit, t := range w.told {
		t.since = now
		w.told[limit] = t
	}
}

// wish is what a member wants of a limit, and since when it has been waiting. f.mu is held.
func (f *Fleet) wish(m Member, limit string) (n int, since time.Time) {
	if h, ok := f.wishes.heard[m.Session][limit]; ok && h.N > m.told {
		return h.Want, h.since
	}
	return m.Wants[limit], m.seen.Add(-time.Duration(m.waited[limit]) * time.Microsecond)
}

// tell has the others know what this instance wants of a limit if it makes a difference to them; next is how many parts it has from now on. It
// returns after what time that is to be looked at again, or 0.
func (f *Fleet) tell(p *portion, limit string, next int) (again time.Duration) {
	word, inboxes, again := f.word(p, limit, next)
	for _, inbox := range inboxes { // without the lock: a connection that is stalled can block
		_ = f.js.Conn().Publish(inbox, word) // what is lost is told again
	}
	return again
}

func (f *Fleet) word(p *portion, limit string, next int) (word []byte, inboxes []string, again time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	own, told := f.wishes.own[limit], f.wishes.told[limit]
	hungry, age := own.Want > next, now.Sub(told.since)
	switch change := max(own.Want-told.Want, told.Want-own.Want); {
	case hungry != (told.Want > next):
	case change > told.Want/4 && (hungry || p.othersHungry()):
		if age < tellEvery {
			return nil, nil, tellEvery - age
		}
	case !hungry:
		return nil, nil, 0
	case age < tellAgain:
		return nil, nil, tellAgain - age
	}
	f.wishes.n++
	f.wishes.told[limit] = wish{Want: own.Want, since: now}
	w := wish{Session: p.id, N: f.wishes.n, Limit: limit, Want: own.Want}
	if !own.since.IsZero() {
		w.Waited = now.Sub(own.since).Microseconds()
	}
	word, _ = json.Marshal(w)
	for id, m := range f.view.sessions {
		switch {
		case id == p.id:
		case m.inbox == "": // an older relay, which knows the record only
			f.Renew()
		default:
			inboxes = append(inboxes, m.inbox)
		}
	}
	return word, inboxes, 0
}

// hear takes a word of another instance.
func (f *Fleet) hear(m *nats.Msg) {
	var w wish
	if json.Unmarshal(m.Data, &w) != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.wishes.heard, func(id string, _ map[string]wish) bool {
		_, lives := f.view.sessions[id]
		return !lives
	})
	if _, lives := f.view.sessions[w.Session]; !lives || w.N <= f.wishes.heard[w.Session][w.Limit].N {
		return
	}
	if f.wishes.heard[w.Session] == nil {
		f.wishes.heard[w.Session] = make(map[string]wish)
	}
	w.since = time.Now().Add(-time.Duration(max(0, w.Waited)) * time.Microsecond)
	f.wishes.heard[w.Session][w.Limit] = w
	f.signal()
}
