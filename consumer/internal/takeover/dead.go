package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// inHandSoon is the time between the question to the server and those to the instances: for what is on its way to them.
	inHandSoon = 300 * time.Millisecond
	// inHandTries is how often they are asked when one does not answer.
	inHandTries = 5
	// mostNamed bounds how far the oldest message in hand may be behind the newest.
	mostNamed = 2 * Many
	// atOnce bounds how many durables are looked at side by side.
	atOnce = 16
	// laterTimeout bounds the look for messages that wait for their delay.
	laterTimeout = 5 * time.Second
)

var errTooFar = errors.New("the oldest message in hand is too far behind the newest")

// Fellows are the other instances of the service that live.
type Fellows struct {
	Conn    *nats.Conn
	Log     *slog.Logger
	Service string
	Route   string // one that this instance has
	// Ask puts a [Question] to all of them. Without the answer of one there is an error.
	Ask func(ctx context.Context, question []byte) (answers [][]byte, err error)
}

// GiveBackOfDead gives back what instances had in hand that died, of these durables.
func (f Fellows) GiveBackOfDead(ctx context.Context, list []*Takeover) {
	// Meanwhile it is found out what that is. Nothing is given back before this is answered.
	allSay := sync.OnceValue(func() error {
		err := f.allSay(ctx)
		if err != nil && ctx.Err() == nil {
			f.Log.Warn("cannot give back the messages that a dead instance had in hand; they are redelivered after ack_wait", "error", err)
		}
		return err
	})
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { _ = allSay() })
	at := pool.New(atOnce)
	for _, t := range list {
		at.Go(func() {
			n, err := t.giveBackOfDead(ctx, f.Ask, func() bool { return allSay() == nil })
			if err != nil && ctx.Err() == nil {
				t.cfg.Log.Warn("cannot give back the messages that a dead instance had in hand; they are redelivered after ack_wait", "ack_wait", t.cfg.AckWait(), "error", err)
			} else if n > 0 {
				t.cfg.Log.Info("the messages that a dead instance had in hand are redelivered now", "messages", n)
			}
		})
	}
	at.Wait()
}

// allSay returns an error unless all instances that run are known to say what they have in hand. Those of v0.2.0 do not, and most of them have no entry
// in the bucket by which the living are known: without this question, what they handle would be taken for what the dead had. Their status has no version.
func (f Fellows) allSay(ctx context.Context) error {
	earlier := ""
	_, err := control.AskUntil(ctx, f.Conn, f.Service, control.StatusRequest{Route: f.Route, Keys: -1}, func(s control.Status) bool {
		if s.Version == "" {
			earlier = s.Instance
		}
		return earlier != ""
	})
	if earlier != "" {
		return fmt.Errorf("instance %s runs an earlier version, which does not report what it has in hand", earlier)
	}
	return err
}

// giveBackOfDead gives back what was delivered until now and none of the living has in hand: somebody had it who died. What waits at the server for its own
// delay is left. May is asked last, and may block. It returns how many messages that are, at most.
func (t *Takeover) giveBackOfDead(ctx context.Context, others func(context.Context, []byte) ([][]byte, error), may func() bool) (n int, err error) {
	info, err := t.cfg.Ask(ctx)
	if err != nil {
		return 0, err
	}
	if info.NumAckPending == 0 {
		return 0, nil
	}
	from, to := info.AckFloor.Stream+1, info.Delivered.Stream
	if to+1-from > mostNamed {
		return 0, errTooFar
	}
	question, err := json.Marshal(Question{Stream: t.cfg.Stream, Durable: t.cfg.Durable, Created: info.Created})
	if err != nil {
		return 0, err
	}
	var answers [][]byte
	for try := range inHandTries {
		transient.Pause(ctx, inHandSoon)
		if answers, err = others(ctx, question); err == nil {
			break
		}
		if try == inHandTries-1 || ctx.Err() != nil {
			return 0, err
		}
	}
	known := make(map[uint64]struct{})
	for _, a := range answers {
		var h inhand.Snapshot
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
	for _, seq := range t.cfg.Delivered().Unsettled {
		known[seq] = struct{}{}
	}
	var list []uint64
	for seq := from; seq <= to; seq++ {
		_, hand := known[seq]
		if _, waits := later[seq]; !hand && !waits {
			list = append(list, seq)
		}
	}
	if len(list) == 0 || !may() {
		return 0, nil
	}
	_, err = t.GiveBack(ctx, info.Delivered.Consumer, slices.Values(list))
	return min(len(list), info.NumAckPending), err
}
