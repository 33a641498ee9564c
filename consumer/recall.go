package consumer

import (
	"github.com/relaymq/relay/ack"
)

// The messages of a suspended key are given back for an hour. When the key is resumed nobody wants to wait for that, so
// each instance remembers what it sent away, and asks for it again.

// maxAway bounds what a route remembers; what is beyond comes by itself, within the hour.
const maxAway = 10_000

// sentAway remembers a message that was given back because its key is suspended.
func (rt *route) sentAway(m *message) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.awayCount >= maxAway {
		return
	}
	if rt.away == nil {
		rt.away = make(map[string][]*ack.Delivery)
	}
	// Its bytes are not needed, and there may be many.
	m.delivery.Msg, m.data, m.header, m.first, m.First = nil, nil, nil, nil, nil
	rt.away[m.Key] = append(rt.away[m.Key], m.delivery)
	rt.awayCount++
}

// recall asks for the messages of a key that was resumed.
func (rt *route) recall(key string) {
	rt.mu.Lock()
	list := rt.away[key]
	delete(rt.away, key)
	rt.awayCount -= len(list)
	rt.mu.Unlock()
	for _, d := range list {
		d.Recall()
	}
}
