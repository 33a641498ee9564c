package takeover

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/away"
)

const (
	// inHandSoon is the time between the question to the server and those to the instances: for what is on its way to them.
	inHandSoon = 300 * time.Millisecond
	// inHandTries is how often they are asked when one does not answer.
	inHandTries = 5
	// mostNamed bounds how far the oldest message in hand may be behind the newest.
	mostNamed = 2 * Many
	// laterTimeout bounds the look for messages that wait for their delay.
	laterTimeout = 5 * time.Second
)

var errTooFar = errors.New("the oldest message in hand is too far behind the newest")

// Living are the instances that read the durable and live.
type Living struct {
	// Others asks each other one what it has in hand: an [ack.InHand] in binary. Without the answer of one there is an error.
	Others func(context.Context) ([][]byte, error)
	// Own is what this instance has in hand.
	Own func() ack.InHand
	// May is asked last, and may block.
	May func() bool
}

// GiveBackOfDead gives back what was delivered before info was asked for and none of the living has in hand: somebody had it who died. What waits
// at the server for its own delay is left. It returns how many messages that are, at most.
func (t *Takeover) GiveBackOfDead(ctx context.Context, info *jetstream.ConsumerInfo, living Living) (n int, err error) {
	if info.NumAckPending == 0 {
		return 0, nil
	}
	from, to := info.AckFloor.Stream+1, info.Delivered.Stream
	if to+1-from > mostNamed {
		return 0, errTooFar
	}
	var answers [][]byte
	for try := range inHandTries {
		away.Pause(ctx, inHandSoon)
		if answers, err = living.Others(ctx); err == nil {
			break
		}
		if try == inHandTries-1 || ctx.Err() != nil {
			return 0, err
		}
	}
	known := make(map[uint64]struct{})
	for _, a := range answers {
		var h ack.InHand
		if err := h.UnmarshalBinary(a); err != nil {
			return 0, err
		}
		for _, seq := range h.Unsettled {
			known[seq] = struct{}{}
		}
	}
	call, cancel := context.WithTimeout(ctx, laterTimeout)
	defer cancel()
	later, err := t.cfg.Records().Later(call) // these wait at the server, and come when they are due
	if err != nil {
		return 0, err
	}
	for _, seq := range living.Own().Unsettled {
		known[seq] = struct{}{}
	}
	var list []uint64
	for seq := from; seq <= to; seq++ {
		_, hand := known[seq]
		if _, waits := later[seq]; !hand && !waits {
			list = append(list, seq)
		}
	}
	if len(list) == 0 || !living.May() {
		return 0, nil
	}
	_, err = t.GiveBack(ctx, info.Delivered.Consumer, slices.Values(list))
	return min(len(list), info.NumAckPending), err
}
