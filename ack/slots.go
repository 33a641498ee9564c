package ack

import "strconv"

// slot is something sent to the server and not answered yet.
type slot struct {
	delivery   *Delivery
	sent       moment
	generation uint32
	settlement bool  // an ack or a NAK; otherwise a +WPI
	prev, next int32 // in the order of sent
}

// slots is a table of what is unanswered: found by the token of its reply subject, kept in the order it was sent. A token
// names the place in the table and the generation of its use, so that a late answer to an earlier use finds nothing.
type slots struct {
	table  []slot // table[0] is the ring's head
	unused []int32
}

func newSlots() slots { return slots{table: make([]slot, 1)} }

// settles takes a slot for the settlement of d.
func (t *slots) settles(d *Delivery, now moment) int32 {
	i := t.use(d, now)
	t.table[i].settlement = true
	return i
}

// use takes a slot for a +WPI of d.
func (t *slots) use(d *Delivery, now moment) int32 {
	var i int32
	if n := len(t.unused); n > 0 {
		i, t.unused = t.unused[n-1], t.unused[:n-1]
	} else {
		i = int32(len(t.table))
		t.table = append(t.table, slot{})
	}
	p := &t.table[i]
	p.generation++
	p.delivery, p.sent, p.settlement = d, now, false
	last := t.table[0].prev
	p.prev, p.next = last, 0
	t.table[last].next, t.table[0].prev = i, i
	return i
}

// token is the prefix followed by what names this use of the slot.
func (t *slots) token(prefix string, i int32) string {
	var buf [128]byte
	b := append(buf[:0], prefix...)
	return string(strconv.AppendUint(b, uint64(t.table[i].generation)<<32|uint64(i), 36))
}

// find is the slot that the token names; noSlot when that is in other use.
func (t *slots) find(token string) int32 {
	n, err := strconv.ParseUint(token, 36, 64)
	i := int64(n & 0xffffffff)
	if err != nil || i == 0 || i >= int64(len(t.table)) {
		return noSlot
	}
	if p := &t.table[i]; p.delivery == nil || uint64(p.generation) != n>>32 {
		return noSlot
	}
	return int32(i)
}

// free gives a slot back; sent and settlement stay readable until its next use.
func (t *slots) free(i int32) {
	if i == noSlot {
		return
	}
	p := &t.table[i]
	t.table[p.prev].next, t.table[p.next].prev = p.next, p.prev
	if p.delivery.slot == i {
		p.delivery.slot = noSlot
	}
	p.delivery = nil
	t.unused = append(t.unused, i)
}

// oldest is the index of the slot that was sent first, 0 when there is none.
func (t *slots) oldest() int32 { return t.table[0].next }

// sentBefore tells whether something sent before then is unanswered.
func (t *slots) sentBefore(then moment) bool {
	i := t.oldest()
	return i != 0 && t.table[i].sent < then
}
