//go:build chaos

package teeth

import (
	"os"
	"slices"
	"strings"
)

var pulled = strings.Split(os.Getenv("CHAOS_PULLED"), ",")

var (
	acks, fence, record, expect       = has("acks"), has("fence"), has("record"), has("expect")
	fresh, call, pace, question, lend = has("fresh"), has("call"), has("pace"), has("question"), has("lend")
	lease, alone, copies, hints       = has("lease"), has("alone"), has("copies"), has("hints")
)

func has(name string) bool { return slices.Contains(pulled, name) }

// Acks tells whether unconfirmed acks are taken for confirmed.
func Acks() bool { return acks }

// Fence tells whether lost leases go unnoticed.
func Fence() bool { return fence }

// Record tells whether attempts are not written down.
func Record() bool { return record }

// Copies tells whether the attempts of other copies of a message do not count.
func Copies() bool { return copies }

// Fresh tells whether a waiting route asks no message that nobody has judged.
func Fresh() bool { return fresh }

// Expect tells whether dead letters are stored unconditionally.
func Expect() bool { return expect }

// Question tells whether callers are not asked.
func Question() bool { return question }

// Call tells whether nothing that is aside is called back.
func Call() bool { return call }

// Pace tells whether a route in doubt asks as fast as it can.
func Pace() bool { return pace }

// Lend tells whether a fallback gets no message that waits.
func Lend() bool { return lend }

// Lease tells whether what only one instance may have is used beyond the lease.
func Lease() bool { return lease }

// Alone tells whether routes of one instance at a time are handled by all.
func Alone() bool { return alone }

// Hints tells whether instances keep what they learn of an outage to themselves.
func Hints() bool { return hints }
