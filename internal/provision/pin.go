package provision

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The durables of a route with instances: one have the policy pinned_client. The pin is not what makes the holder the only one: it keeps the
// pulls of others out, such as those that a holder left parked at the server when it froze.

const (
	// PinGroup is the only group of the policy.
	PinGroup = "relay"
	// pinTTL is after what time without a pull the server drops the pin. The holder pulls every few seconds.
	pinTTL = time.Minute
)

func pin(c *jetstream.ConsumerConfig) {
	c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL = jetstream.PriorityPolicyPinned, []string{PinGroup}, pinTTL
}

func samePolicy(a, b jetstream.ConsumerConfig) bool {
	return a.PriorityPolicy == b.PriorityPolicy && slices.Equal(a.PriorityGroups, b.PriorityGroups)
}

// policyOf describes the policy for people.
func policyOf(c jetstream.ConsumerConfig) string {
	switch c.PriorityPolicy {
	case jetstream.PriorityPolicyNone:
		return "none"
	case jetstream.PriorityPolicyPinned:
		return fmt.Sprintf("pinned_client (%s)", strings.Join(c.PriorityGroups, ", "))
	}
	return fmt.Sprint(c.PriorityPolicy)
}
