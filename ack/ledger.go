package ack

import "sync/atomic"

// Ledger counts the deliveries that are alive, and the bytes that they hold: from their arrival until the server has confirmed
// their settlement, or they were let go, wherever they are in between. Create it with [NewLedger]. Safe for concurrent use.
type Ledger struct {
	told func()
	n    atomic.Int64 // bytes, and above them messages
	low  atomic.Int64 // somebody waits until both are at most as many; 0: nobody does
}

// ledgerShift leaves room for a terabyte below the count of messages.
const ledgerShift = 40

// NewLedger makes a ledger. When there is less than [Ledger.Await] waits for, told is called, once: with the lock of a session held,
// so it must neither block nor call a session.
func NewLedger(told func()) *Ledger { return &Ledger{told: told} }

// Held is what is alive now.
func (l *Ledger) Held() (messages, bytes int) { return ledgerParts(l.n.Load()) }

func ledgerParts(n int64) (messages, bytes int) {
	return int(n >> ledgerShift), int(n & (1<<ledgerShift - 1))
}

// Await has told called when no more than that is alive; it may be already.
func (l *Ledger) Await(messages, bytes int) {
	l.low.Store(int64(messages)<<ledgerShift | int64(bytes))
	l.check(l.n.Load())
}

func (l *Ledger) take(messages, bytes int) { l.n.Add(int64(messages)<<ledgerShift + int64(bytes)) }

func (l *Ledger) give(messages, bytes int) {
	l.check(l.n.Add(-(int64(messages)<<ledgerShift + int64(bytes))))
}

func (l *Ledger) check(now int64) {
	low := l.low.Load()
	if low == 0 {
		return
	}
	messages, bytes := ledgerParts(now)
	if m, b := ledgerParts(low); messages <= m && bytes <= b && l.low.CompareAndSwap(low, 0) {
		l.told()
	}
}

// enter counts a delivery that arrived; the session's lock is held.
func (d *Delivery) enter(size int) {
	if d.Ledger != nil {
		d.weight = size
		d.Ledger.take(1, size)
	}
}

// leave ends what enter began.
func (d *Delivery) leave() {
	if d.weight > 0 {
		d.Ledger.give(1, d.weight)
		d.weight = 0
	}
}

// Weigh counts bytes that the delivery holds beside its message: a body that was kept elsewhere.
func (d *Delivery) Weigh(bytes int) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if d.weight > 0 {
		d.weight += bytes
		d.Ledger.take(0, bytes)
	}
}
