package supervise

import (
	"fmt"
	"time"
)

// standing is why an ordered key that flows starts nothing all the same, and until when at most, if that is known. Why is empty for a key that
// goes on as soon as there is a slot.
func (o *order) standing(k *key) (why string, since, until time.Time) {
	if !o.opts.Ordered || !k.flows() || k.runs+k.lent > 0 {
		return "", since, until
	}
	m := k.first()
	if m == nil {
		return "", since, until
	}
	first, expected, any := k.outside.next(o.now)
	switch {
	case o.gate.holds(m, o.now):
		return o.gate.why(), o.gate.since, o.gate.until
	case any && first < m.Sequence:
		return fmt.Sprintf("message %d comes first, but it was given back", first), m.arrived, expected
	case m.Due.After(o.now) && !m.FirstFailure.IsZero():
		err := m.LastErr
		if err == nil {
			err = fmt.Errorf("%d attempts", m.Attempts)
		}
		return fmt.Sprintf("the first message of the key failed: %v", err), m.FirstFailure, m.Due
	case m.Due.After(o.now):
		return "the first message of the key was snoozed", m.arrived, m.Due
	case m.storing:
		return fmt.Sprintf("the first message of the key failed, and its attempts are being stored: %v", m.LastErr), m.FirstFailure, m.Due
	}
	return "", since, until
}
