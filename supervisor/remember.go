package supervisor

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
	t.call(func() { m.Work.Remember(o, func(ok bool) { group.remembered(m, ok) }) })
}

// remembered lets the message go on, or sends it away if that was decided meanwhile.
func (g *Group) remembered(m *Message, ok bool) {
	t := g.lock()
	m.storing = false
	if ok {
		m.unsaved = false
	}
	if o := m.parting; o != nil {
		m.parting = nil
		if ok && o.Action == RetryLater {
			o.Action = GiveBack // what is to be remembered is stored
		}
		t.settle(m, *o)
	} else if k := t.keys[m.Key]; k != nil {
		k.attend(t)
		t.startAll()
	}
	t.unlock()
}
