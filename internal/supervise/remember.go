package supervise

// A message that fails and leaves takes its count of attempts along. One that fails and stays, as the head of an ordered key
// does, has it in memory only, and a process that is killed would give it all its attempts again. So the owner stores the
// count first, and the message does not start again before that is confirmed.

// remember has the owner store the failure of a message that stays.
func (t *moment) remember(m *Message) {
	if m.place.in == nil {
		return // it left after all
	}
	m.storing = true
	o := Outcome{Action: RetryLater, Due: m.Due, Attempts: m.Attempts, FirstFailure: m.FirstFailure, Err: m.LastErr}
	group := t.group
	t.call(func() {
		m.Work.Remember(o, func(ok bool) {
			if ok {
				group.remembered(m)
			} else {
				group.notRemembered(m)
			}
		})
	})
}

// remembered notes that the failure of a message is stored.
func (g *Group) remembered(m *Message) {
	t := g.lock()
	m.unsaved = false
	if o := m.parting; o != nil && o.Action == RetryLater {
		o.Action = GiveBack // what is to be remembered is stored
	}
	t.goesOn(m)
	t.unlock()
}

// notRemembered notes that it is not: the lease was lost.
func (g *Group) notRemembered(m *Message) {
	t := g.lock()
	t.goesOn(m)
	t.unlock()
}

// goesOn lets the message go on, or sends it away if that was decided meanwhile.
func (t *turn) goesOn(m *Message) {
	m.storing = false
	if o := m.parting; o != nil {
		m.parting = nil
		t.settle(m, *o)
	} else if k := t.keys[m.Key]; k != nil {
		k.attend(t)
		t.startAll()
	}
}
