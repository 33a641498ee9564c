package ack

// enter counts a delivery that arrived; the session's lock is held.
func (d *Delivery) enter(size int) {
	if d.InHand != nil {
		d.weight = size
		d.InHand.Take(1, size)
	}
}

// leave ends what enter began.
func (d *Delivery) leave() {
	if d.weight > 0 {
		d.InHand.Give(1, d.weight)
		d.weight = 0
	}
}

// Weigh counts bytes that the delivery holds beside its message: a body that was kept elsewhere.
func (d *Delivery) Weigh(bytes int) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if d.weight > 0 {
		d.weight += bytes
		d.InHand.Take(0, bytes)
	}
}
