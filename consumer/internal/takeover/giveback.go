package takeover

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

const (
	// least and most NAKs are sent before the server is waited for: it queues what it has not looked at without a bound.
	least, most = 2048, 16_384
	// busyFor is how long the server is to be busy with them. What renews the lease waits behind them.
	busyFor = 250 * time.Millisecond
	// answerTimeout bounds the wait for its answer.
	answerTimeout = 5 * time.Second
)

// GiveBack gives these sequences back, and waits until the server has looked at all of them. It returns the last one that the server has looked at.
// Consumer is a sequence of the durable that was delivered.
func (t *Takeover) GiveBack(ctx context.Context, consumer uint64, list iter.Seq[uint64]) (to uint64, err error) {
	prefix, suffix := "$JS.ACK."+t.cfg.Stream+"."+t.cfg.Durable+".1.", fmt.Sprintf(".%d.%d.0", consumer, time.Now().UnixNano())
	subject := func(seq uint64) string { return prefix + strconv.FormatUint(seq, 10) + suffix }
	n, many, held, began := 0, least, uint64(0), time.Now() // held back for the question that ends them
	ask := func() error {
		if err := t.nak(ctx, subject(held)); err != nil {
			return err
		}
		switch took := time.Since(began); {
		case took < busyFor/2:
			many = min(2*many, most)
		case took > busyFor:
			many = max(many/2, least)
		}
		to, n, held, began = held, 0, 0, time.Now()
		return nil
	}
	for seq := range list {
		if held > 0 {
			if err := t.cfg.Conn.Publish(subject(held), []byte("-NAK")); err != nil {
				return to, err
			}
		}
		held = seq
		if n++; n < many {
			continue
		}
		if err := ask(); err != nil {
			return to, err
		}
	}
	if held > 0 {
		err = ask()
	}
	return to, err
}

// nak gives one back and waits for the server, which answers in the order in which it looks at them. It ends when the connection is lost, and does not
// ask again: those that were sent before may be lost, too.
func (t *Takeover) nak(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return transient.Once(ctx, t.cfg.Conn, func(ctx context.Context) error {
		_, err := t.cfg.Conn.RequestWithContext(ctx, subject, []byte("-NAK"))
		return err
	})
}
