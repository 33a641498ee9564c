package durables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/provision"
)

// Make makes the durable as it was found to be wanted, unless another instance was faster: then that one's counts.
func (d *Durable) Make(ctx context.Context) (jetstream.Consumer, error) {
	consumer, err := d.On.CreateConsumer(ctx, d.Want)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		d.Made = false
		if consumer, err = d.On.Consumer(ctx, d.cfg.Durable); err != nil {
			return nil, d.failed("making", err)
		}
		return d.use(ctx, d.On, consumer)
	}
	if d.Made = err == nil; err != nil {
		return nil, d.failed("making", err)
	}
	return consumer, nil
}

func (d *Durable) failed(what string, err error) error {
	return fmt.Errorf("%s durable %s on stream %s: %w", what, d.cfg.Durable, d.cfg.Stream, err)
}

// Unmake removes a durable that a start made which then failed, unless another instance uses it by now, or it is not the one that was made then.
func (d *Durable) Unmake(ctx context.Context, created time.Time) error {
	if !d.Made {
		return nil
	}
	consumer, err := d.On.Consumer(ctx, d.cfg.Durable)
	if err != nil {
		return err
	}
	i := consumer.CachedInfo()
	if !i.Created.Equal(created) || i.NumWaiting > 0 || i.Delivered.Consumer > 0 {
		return nil
	}
	if err = d.On.DeleteConsumer(ctx, d.cfg.Durable); err == nil {
		d.cfg.Log.Info("the start failed; removed the durable that it had made")
	}
	return err
}

// mayUse refuses a durable that is not as wanted and may not be changed to be so.
func (d *Durable) mayUse(stream jetstream.Stream, have jetstream.ConsumerConfig) error {
	c := d.JudgeToUse(have, stream)
	if !c.Own && (len(c.Fixed) > 0 || len(c.Changeable) > 0 && !d.cfg.Adopt) {
		return d.cfg.Differs(c.Differs())
	}
	return nil
}

// Use leaves a durable that is as wanted alone, and changes another one only when told to, or when relay made it and only its routes are others.
func (d *Durable) Use(ctx context.Context, consumer jetstream.Consumer) (jetstream.Consumer, error) {
	return d.use(ctx, d.On, consumer)
}

func (d *Durable) use(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) (jetstream.Consumer, error) {
	have := consumer.CachedInfo().Config
	if err := d.mayUse(stream, have); err != nil {
		return nil, err
	}
	c := d.JudgeToUse(have, stream)
	switch {
	case !c.Own && len(c.Differs()) == 0:
		return consumer, nil
	case have.AckWait > c.Want.AckWait && consumer.CachedInfo().NumWaiting > 0:
		// Whoever pulls extends its leases by the longer one. Its messages would be delivered again before that.
		return nil, d.cfg.Differs([]string{fmt.Sprintf(
			"ack_wait is %v, not %v, and another instance pulls with it. Changing it now would have that instance's messages handled twice, so it is changed once no other instance pulls (stop or reload those)", have.AckWait, c.Want.AckWait)})
	case !d.cfg.Adopt:
		d.cfg.Log.Info("changing the durable to match this configuration", "was", plain.And(c.Differs()), "filters", provision.Filters(c.Want))
	default:
		d.cfg.Log.Warn("changing a durable that exists", "was", plain.And(c.Differs()), "filters", provision.Filters(c.Want))
		return d.Change(ctx, stream, have, c.Adopted(time.Now()))
	}
	return d.Change(ctx, stream, have, c.Want)
}

// Change gives a durable what relay cares about, while no other instance changes it, and writes down what it passes by that. Without it, two instances
// that read the same configuration would each take away what the other one has added.
func (d *Durable) Change(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if d.cfg.Due {
		return d.update(ctx, stream, have, want)
	}
	change, err := d.cfg.CatchUp.Change(ctx, stream, have, want, func() (jetstream.Consumer, error) { return d.update(ctx, stream, have, want) })
	if change != nil && change.SomebodyElse {
		return d.use(ctx, stream, change.Consumer)
	}
	if change == nil {
		return nil, err
	}
	for _, g := range change.Passed {
		p := d.of(g.Pattern)
		p.Log.Info("the durable has passed messages that the route wants now; they are handed over to it through the retry stream",
			"subjects", g.Pattern, "start", p.Start.Text, "held", g.Held)
		if p.Ordered {
			p.Log.Warn("messages that are handed over are not in order with those that the durable delivers", "subjects", g.Pattern)
		}
	}
	return change.Consumer, err
}

func (d *Durable) update(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if have.PriorityPolicy == jetstream.PriorityPolicyPinned && want.PriorityPolicy == jetstream.PriorityPolicyNone && len(have.PriorityGroups) > 0 {
		// The server goes on with a pin that is set when the policy is none, and serves nobody until its time is over.
		if err := stream.UnpinConsumer(ctx, d.cfg.Durable, have.PriorityGroups[0]); err != nil {
			return nil, d.failed("changing", err)
		}
	}
	updated, err := stream.UpdateConsumer(ctx, provision.Changed(have, want))
	if err != nil {
		return nil, d.failed("changing", err)
	}
	return updated, nil
}

// mayWiden tells whether it was chosen where a route begins whose subjects the durable has passed.
func (d *Durable) mayWiden(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) error {
	queue := isQueue(stream)
	for _, g := range d.cfg.CatchUp.Gap(have, 0) {
		p := d.of(g.Pattern)
		if p.Start.isAll() || p.Start.Policy != "" && !queue || d.cfg.CatchUp.Had() {
			continue
		}
		n, err := d.cfg.CatchUp.Holds(ctx, g)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
		case queue:
			return fmt.Errorf("start: stream %s is a work queue and holds %d messages for %s, which durable %s has passed: no other consumer can get them, so set start: all for route %s",
				d.cfg.Stream, n, g.Pattern, d.cfg.Durable, p.Route)
		default:
			return fmt.Errorf("start: stream %s already holds %d messages for %s, which durable %s has passed: say where route %s begins with them (start: all, new, {since: <time>} or {seq: <n>})",
				d.cfg.Stream, n, g.Pattern, d.cfg.Durable, p.Route)
		}
	}
	return nil
}
