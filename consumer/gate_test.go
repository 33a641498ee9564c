package consumer

import (
	"testing"
	"testing/synctest"
	"time"
)

// A delivery is its consumer sequence, stream sequence and count.
func (t *gate) got(consumer, sequence, deliveries uint64) (above uint64, held bool) {
	now := time.Now()
	t.delivered(sequence, consumer, deliveries, now)
	above, until := t.open(now)
	return above, now.Before(until)
}

func TestGate(t *testing.T) {
	const wait = 30 * time.Second
	type step struct {
		consumer, sequence, deliveries uint64
		held                           bool
		above                          uint64
		event                          bool
		after                          time.Duration
	}
	for name, tc := range map[string]struct {
		pending int // of an earlier life, between 2 and 5
		steps   []step
	}{
		"nothing is missing": {steps: []step{{consumer: 10, sequence: 6, deliveries: 1}, {consumer: 11, sequence: 9, deliveries: 1}}},
		"an earlier life": {pending: 2, steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1, held: true, above: 2},
			{consumer: 11, sequence: 4, deliveries: 2, held: true, above: 2},
			{consumer: 12, sequence: 4, deliveries: 3, held: true, above: 2}, // the same
			{consumer: 13, sequence: 3, deliveries: 2},
		}},
		"an earlier life whose deliveries others have": {pending: 2, steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1, held: true, above: 2},
			{consumer: 11, sequence: 7, deliveries: 1, after: wait + gateSlack},
		}},
		"two are lost": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 13, sequence: 12, deliveries: 1, held: true, above: 6},
			{consumer: 14, sequence: 13, deliveries: 1, held: true, above: 6},
			{consumer: 15, sequence: 5, deliveries: 2, held: true, above: 6}, // another one
			{consumer: 16, sequence: 8, deliveries: 2, held: true, above: 6},
			{consumer: 17, sequence: 9, deliveries: 2},
		}},
		"two are lost, and what comes next is a redelivery": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 13, sequence: 7, deliveries: 2, held: true, above: 6},
			{consumer: 14, sequence: 8, deliveries: 2},
		}},
		"one is lost, and lost again": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 12, sequence: 8, deliveries: 1, held: true, above: 6},
			{consumer: 14, sequence: 9, deliveries: 1, held: true, above: 6},
			{consumer: 15, sequence: 7, deliveries: 3, held: true, above: 8}, // the second gap stays
			{consumer: 16, sequence: 10, deliveries: 1, after: wait + gateSlack},
		}},
		"a server that was killed forgot some": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 8, sequence: 5, deliveries: 1},
			{consumer: 9, sequence: 6, deliveries: 1},
			{consumer: 10, sequence: 7, deliveries: 1},
		}},
		"others take deliveries": {steps: []step{
			{consumer: 20, sequence: 6, deliveries: 1, held: true, above: 5},
			{consumer: 21, sequence: 16, deliveries: 1, after: wait + gateSlack},
			{consumer: 30, sequence: 26, deliveries: 1},                                     // known
			{consumer: 40, sequence: 36, deliveries: 1, event: true, held: true, above: 26}, // it may be that, or a loss
			{consumer: 41, sequence: 37, deliveries: 1, after: wait + gateSlack},
			{consumer: 50, sequence: 46, deliveries: 1},
			{consumer: 51, sequence: 47, deliveries: 1, after: alone},
			{consumer: 60, sequence: 56, deliveries: 1, after: time.Second, held: true, above: 47}, // they were gone
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g gate
				g.begin(9, 2, 5, tc.pending, wait, time.Now())
				for _, s := range tc.steps {
					time.Sleep(s.after)
					g.open(time.Now())
					if s.event {
						g.event = true
					}
					if above, held := g.got(s.consumer, s.sequence, s.deliveries); held != s.held || above != s.above {
						t.Errorf("after delivery %d: held %v, above %d; want %v, %d", s.consumer, held, above, s.held, s.above)
					}
				}
			})
		})
	}
}
