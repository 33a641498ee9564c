package inhand

import "sync/atomic"

// Count counts the deliveries that are alive, and the bytes that they hold: from their arrival until the server has confirmed
// their settlement, or they were let go, wherever they are in between. Create it with [NewCount]. Safe for concurrent use.
type Count struct {
	told func()
	n    atomic.Int64 // bytes, and above them messages
	low  atomic.Int64 // somebody waits until both are at most as many; 0: nobody does
}

// countShift leaves room for a terabyte below the count of messages.
const countShift = 40

// NewCount makes one. When there is less than [Count.Await] waits for, told is called, once: with the lock of a session held,
// so it must neither block nor call a session.
func NewCount(told func()) *Count { return &Count{told: told} }

// Held is what is alive now.
func (c *Count) Held() (messages, bytes int) { return countParts(c.n.Load()) }

func countParts(n int64) (messages, bytes int) {
	return int(n >> countShift), int(n & (1<<countShift - 1))
}

// Await has told called when no more than that is alive; it may be already.
func (c *Count) Await(messages, bytes int) {
	c.low.Store(int64(messages)<<countShift | int64(bytes))
	c.check(c.n.Load())
}

// Take counts more.
func (c *Count) Take(messages, bytes int) { c.n.Add(int64(messages)<<countShift + int64(bytes)) }

// Give counts less.
func (c *Count) Give(messages, bytes int) {
	c.check(c.n.Add(-(int64(messages)<<countShift + int64(bytes))))
}

func (c *Count) check(now int64) {
	low := c.low.Load()
	if low == 0 {
		return
	}
	messages, bytes := countParts(now)
	if m, b := countParts(low); messages <= m && bytes <= b && c.low.CompareAndSwap(low, 0) {
		c.told()
	}
}
