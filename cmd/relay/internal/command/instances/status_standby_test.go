package instances

import (
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
)

// A route that flows on its holder stood still "on 1 of 2 instances", where each instance was said to try one message; and its durable was on stream ?.
func TestStatus_regressionAStandbyIsNoTrouble(t *testing.T) {
	t.Parallel()
	on := func(instance, state string, holder control.HolderStatus) consumer.Status {
		rt := consumer.RouteStatus{Name: "billing", State: state, Durable: "billing", Holder: &holder}
		if holder.Here {
			rt.Stream = "ORDERS"
		}
		return consumer.Status{Instance: instance, Service: "relay", Routes: []consumer.RouteStatus{rt}}
	}
	held, now := control.HolderStatus{Instance: "b"}, time.Now()
	standby := on("a", control.StateStandby, held)
	held.Here = true
	var out strings.Builder
	printRoute(&out, []consumer.Status{standby, on("b", control.StateFlowing, held)}, "billing", now)
	if s := out.String(); strings.Contains(s, "is standby") || strings.Contains(s, "tries one message") || !strings.Contains(s, "billing on stream ORDERS") {
		t.Error(s)
	}
	out.Reset()
	printRoute(&out, []consumer.Status{standby, standby}, "billing", now) // the holder does not answer
	if s := out.String(); !strings.Contains(s, "is standby on 2 of 2 instances") || !strings.Contains(s, "within fleet.lease") {
		t.Error(s)
	}
}
