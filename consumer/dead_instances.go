package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/pool"
)

// What an instance had in hand that died comes again after AckWait. Those that live know sooner that it is gone. The server does not tell which messages
// were delivered to whom. So one of them asks the server how far the durable is, and then all that live what they have in hand: of what was
// delivered before, the rest was in hand of the dead, or waits for its own delay. It is given back, as a takeover does (see pin.go).

// worthwhile is the AckWait from which on it is sooner.
const worthwhile = 4 * time.Second

// handQuestion asks an instance what it has in hand of a durable, or whether it reads it at all.
type handQuestion struct {
	Stream  string    `json:"stream"`
	Durable string    `json:"durable"`
	Created time.Time `json:"created"` // the durable
	Reads   bool      `json:"reads,omitempty"`
}

// readsIt is the answer of an instance that reads the durable.
const readsIt = "reads"

// answerHand says what this instance has in hand, an [ack.InHand] in binary, or whether it reads the durable.
func (r *Relay) answerHand(question []byte) []byte {
	var q handQuestion
	if json.Unmarshal(question, &q) != nil {
		return nil
	}
	var h ack.InHand
	for _, s := range r.openSources() {
		if s.stream == q.Stream && s.durable == q.Durable && s.identity.ConsumerCreated.Equal(q.Created) {
			if q.Reads {
				return []byte(readsIt)
			}
			h = s.inHand()
		}
	}
	data, _ := h.MarshalBinary()
	return data
}

// inHand is what was delivered to this instance and is not settled, also what its pull loop has not looked at: it looks soon.
func (s *source) inHand() ack.InHand {
	for range 50 {
		if s.arrivals.Waiting() == 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return s.session.InHand()
}

// giveBackOf gives back what instances had in hand that died.
func (r *Relay) giveBackOf(ctx context.Context, dead []string) {
	r.log.Warn("an instance died; the messages that it had in hand are given back", "instances", strings.Join(dead, ", "))
	var sources []*source
	for _, s := range r.openSources() {
		if !s.leased() && s.routes[0].cfg.AckWait >= worthwhile {
			sources = append(sources, s)
		}
	}
	if len(sources) == 0 {
		return
	}
	// Meanwhile the sources find out what that is. Nothing is given back before this is answered.
	allSay := sync.OnceValue(func() error {
		err := r.allSay(ctx, sources[0].routes[0].cfg.Name)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("cannot give back the messages that a dead instance had in hand; they are redelivered after ack_wait", "error", err)
		}
		return err
	})
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { _ = allSay() })
	at := pool.New(atOnce)
	for _, s := range sources {
		at.Go(func() {
			n, err := s.giveBackOfDead(ctx, func() bool { return allSay() == nil })
			if err != nil && ctx.Err() == nil {
				s.log.Warn("cannot give back the messages that a dead instance had in hand; they are redelivered after ack_wait", "ack_wait", s.routes[0].cfg.AckWait, "error", err)
			} else if n > 0 {
				s.log.Info("the messages that a dead instance had in hand are redelivered now", "messages", n)
			}
		})
	}
	at.Wait()
}

// allSay returns an error unless all instances that run are known to say what they have in hand. Those of v0.2.0 do not, and most of them have no entry
// in the bucket of [suspects.Lives]: without this question, what they handle would be taken for what the dead had. Their status has no version.
func (r *Relay) allSay(ctx context.Context, route string) error {
	earlier := ""
	_, err := control.AskUntil(ctx, r.nc, r.cfg.Service, control.StatusRequest{Route: route, Keys: -1}, func(s Status) bool {
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

// giveBackOfDead gives back what nobody has in hand, and returns how many messages that are, at most: if it may, which is asked last.
func (s *source) giveBackOfDead(ctx context.Context, may func() bool) (int, error) {
	_, info, err := s.ask(ctx)
	if err != nil {
		return 0, err
	}
	question, err := json.Marshal(handQuestion{Stream: s.stream, Durable: s.durable, Created: info.Created})
	if err != nil {
		return 0, err
	}
	return s.takeover.GiveBackOfDead(ctx, info, takeover.Living{
		Others: func(ctx context.Context) ([][]byte, error) { return s.relay.lives.Load().AskAll(ctx, question) },
		Own:    s.inHand, May: may,
	})
}
