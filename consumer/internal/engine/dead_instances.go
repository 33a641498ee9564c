package engine

import (
	"context"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/takeover"
)

// What an instance had in hand that died comes again after AckWait. Those that live know sooner that it is gone. The server does not tell which messages
// were delivered to whom. So one of them asks the server how far the durable is, and then all that live what they have in hand: of what was
// delivered before, the rest was in hand of the dead, or waits for its own delay. It is given back, as a takeover does (see package takeover).

// worthwhile is the AckWait from which on it is sooner.
const worthwhile = 4 * time.Second

// answerHand says what this instance has in hand of a durable.
func (r *running) answerHand(question []byte) []byte {
	return takeover.Answer(question, func(q takeover.Question) *takeover.Takeover {
		for _, s := range r.Sources() {
			if s.IsThat(q.Stream, q.Durable, q.Created) {
				return s.Takeover
			}
		}
		return nil
	})
}

// giveBackOf gives back what instances had in hand that died.
func (r *running) giveBackOf(ctx context.Context, dead []string, living takeover.Fellows) {
	living.Log.Warn("an instance died; the messages that it had in hand are given back", "instances", strings.Join(dead, ", "))
	var list []*takeover.Takeover
	for _, s := range r.Sources() {
		if rt := s.Routes()[0]; !s.Leased() && rt.AckWait >= worthwhile {
			list, living.Route = append(list, s.Takeover), rt.Name
		}
	}
	if len(list) > 0 {
		living.GiveBackOfDead(ctx, list)
	}
}
