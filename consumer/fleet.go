package consumer

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/internal/fleet"
)

// Fleet says how the instances of a service learn of each other.
type Fleet struct {
	// Lease is how long an instance keeps what only one instance may have, without a confirmed write: whole seconds. Zero means 2s; less
	// is an error.
	Lease time.Duration `koanf:"lease"`
}

// Validate returns what is wrong with it.
func (f Fleet) Validate() error {
	if f.Lease != 0 && (f.Lease < fleet.MinLease || f.Lease%time.Second != 0) {
		return fmt.Errorf("lease: must be whole seconds, at least %v (got %v)", fleet.MinLease, f.Lease)
	}
	return nil
}

// lease is how long one lasts.
func (f Fleet) lease() time.Duration { return max(f.Lease, fleet.MinLease) }
