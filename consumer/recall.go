package consumer

import "time"

// What a group gives back because something else waits it calls back when that is over.

// forgetBytes lets go of what a message that was given back does not need: there may be many.
func (m *message) forgetBytes() {
	m.delivery.Msg, m.data, m.header, m.first, m.First = nil, nil, nil, nil, nil
}

// CallBack asks for a message that was given back because the stash was full.
func (m *message) CallBack(due time.Time) {
	m.called.Store(&due)
	m.delivery.Recall(due, m.source.leased())
}

// givenBack does what CallBack could not while the message was still on its way back.
func (m *message) givenBack() {
	if due := m.called.Load(); due != nil {
		m.delivery.Recall(*due, false)
	}
}
