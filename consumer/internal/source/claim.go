package source

import "github.com/relaymq/relay/consumer/internal/tenure"

// Unit is what a source is set up and ended with.
type Unit interface {
	// Tenure is for a source on which one instance at a time works.
	Tenure() *tenure.Tenure
	// Tried is called when the source was opened, or could not be.
	Tried(s *Source)
}

// claim is whether this instance may work on a source.
type claim struct {
	needed func() bool // one instance at a time works on it
	unit   Unit        // nil until its unit begins
}

// Join says which unit the source belongs to.
func (c *claim) Join(u Unit) { c.unit = u }

// Unit is that of the source; nil until it begins.
func (c *claim) Unit() Unit { return c.unit }

// MayStart tells whether handlers may be started for messages of the source: always, or while this instance certainly has the claim.
func (c *claim) MayStart() bool { return !c.needed() || c.unit.Tenure().Has() }

// Fence is the number of this holder; 0: the source has none.
func (c *claim) Fence() uint64 {
	if !c.needed() {
		return 0
	}
	return c.unit.Tenure().Fence()
}
