//go:build !chaos

package teeth

// Acks tells whether unconfirmed acks are taken for confirmed.
func Acks() bool { return false }

// Fence tells whether lost leases go unnoticed.
func Fence() bool { return false }

// Record tells whether attempts are not written down.
func Record() bool { return false }

// Copies tells whether the attempts of other copies of a message do not count.
func Copies() bool { return false }

// Fresh tells whether a waiting route asks no message that nobody has judged.
func Fresh() bool { return false }

// Expect tells whether dead letters are stored unconditionally.
func Expect() bool { return false }

// Question tells whether callers are not asked.
func Question() bool { return false }

// Call tells whether nothing that is aside is called back.
func Call() bool { return false }

// Pace tells whether a route in doubt asks as fast as it can.
func Pace() bool { return false }

// Lend tells whether a fallback gets no message that waits.
func Lend() bool { return false }

// Lease tells whether what only one instance may have is used beyond the lease.
func Lease() bool { return false }

// Alone tells whether routes of one instance at a time are handled by all.
func Alone() bool { return false }

// Hints tells whether instances keep what they learn of an outage to themselves.
func Hints() bool { return false }
