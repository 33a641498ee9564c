package consumer

import (
	"slices"
	"time"

	"github.com/relaymq/relay/ack"
)

// The messages of a suspended key are given back for an hour, those that come although their route is paused for some
// minutes. When the key or the route is resumed nobody wants to wait for that, so each instance remembers what it sent away,
// and asks for it again.

// maxAway bounds what a route remembers; what is beyond comes by itself, within the hour.
const maxAway = 10_000

type sentAway struct {
	delivery *ack.Delivery
	due      time.Time
}

// remember notes a message that was given back until due because its key is suspended.
func (rt *route) remember(m *message, due time.Time) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	// Messages whose time is over have come back. They may have been given back again, as this message is once an hour.
	now, list := time.Now(), rt.away[m.Key]
	back := 0
	for back < len(list) && list[back].due.Before(now) {
		back++
	}
	list = slices.Delete(list, 0, back)
	rt.awayCount -= back
	if rt.awayCount < maxAway {
		// Its bytes are not needed, and there may be many.
		m.forgetBytes()
		list = append(list, sentAway{m.delivery, due})
		rt.awayCount++
	}
	switch {
	case len(list) == 0:
		delete(rt.away, m.Key)
	case rt.away == nil:
		rt.away = map[string][]sentAway{m.Key: list}
	default:
		rt.away[m.Key] = list
	}
}

// forgetBytes lets go of what a message that was given back does not need: there may be many.
func (m *message) forgetBytes() {
	m.delivery.Msg, m.data, m.header, m.first, m.First = nil, nil, nil, nil, nil
}

// CallBack asks for a message that was given back because the stash was full.
func (m *message) CallBack() { m.delivery.Recall() }

// recall asks for the messages of a key that was resumed.
func (rt *route) recall(key string) {
	rt.mu.Lock()
	list := rt.away[key]
	delete(rt.away, key)
	rt.awayCount -= len(list)
	rt.mu.Unlock()
	for _, s := range list {
		s.delivery.Recall()
	}
}

// recallAll asks for what went away while the route was paused.
func (rt *route) recallAll() {
	rt.mu.Lock()
	all := rt.away
	rt.away, rt.awayCount = nil, 0
	rt.mu.Unlock()
	for _, list := range all {
		for _, s := range list {
			s.delivery.Recall()
		}
	}
}
