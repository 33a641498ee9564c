package route

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// handOver puts a message of a former generation into its partition of the newest one.
func (m *Message) handOver(ctx context.Context) supervise.Verdict {
	if err := m.route().formers.Wait(ctx, m.route().Home.JS); err != nil {
		return supervise.Verdict{Kind: supervise.Snooze, Delay: generations.FormersAgain, Err: err}
	}
	if m.Delivery.FencedAt(time.Now()) || !m.Source.MayStart() { // meanwhile
		return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
	}
	origin := m.From()
	origin.Attempts, origin.FirstFailure, origin.LastError = m.Attempts, m.FirstFailure, settle.ErrorText(m.LastErr)
	origin.Due = m.due
	failpoint.At("handing over")
	if err := m.route().Spec.Part.To.Put(ctx, m.route().Home.JS, m.Subject, retry.Wrap(origin, m.Header), m.Data); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return supervise.Verdict{Kind: supervise.Dead, Err: fmt.Errorf(
				"it cannot be handed over to %d partitions: with the headers that name its origin it is larger than max_payload of the server (%w)", m.route().Spec.Part.To.Count, err)}
		}
		return supervise.Verdict{Kind: supervise.Snooze, Delay: intake.IntoPartitionAgain, Err: err}
	}
	failpoint.At("handed over")
	m.handedOver = true
	return supervise.Verdict{Kind: supervise.Ack}
}
