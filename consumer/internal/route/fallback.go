package route

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
)

// part is which handler of a route has an attempt: its own, or the fallback.
type part struct {
	call     Call
	shared   *usercode.Life // nil: it need not be started
	timeout  time.Duration
	ownBytes bool
	fallback bool
}

// slotTime is how long an attempt of the fallback may hold its slot.
func (f Fallback) slotTime(r Spec) time.Duration {
	r.Timeout = f.Timeout
	return r.slotTime()
}

// fallbackPart is what has attempts of the fallback; nil without one. A life that is given is of the same handler.
func (r Spec) fallbackPart(life *usercode.Life) *part {
	f := r.Fallback
	if f == nil {
		return nil
	}
	if life == nil {
		life = usercode.NewLife(f.Code.Shared)
	}
	call, _ := f.Code.Wrap(f.Code.Shared)
	return &part{call: call, shared: life, timeout: f.Timeout, fallback: true, ownBytes: f.Code.OwnBytes}
}

// fallbackOptions are those of the route's group; nil without a fallback.
func (rt *Route) fallbackOptions(cfg Spec, p *part) *supervise.Fallback {
	f := cfg.Fallback
	if f == nil {
		return nil
	}
	return &supervise.Fallback{
		Waiting: f.Waiting, Exhausted: f.Exhausted,
		Concurrency: f.Concurrency, Timeout: f.slotTime(cfg), Child: p, Failing: rt.fallbackFailing,
	}
}

var _ supervise.Substitute = (*Message)(nil)

// DoFallback is one attempt of the fallback.
func (m *Message) DoFallback(ctx context.Context, number int, child any) supervise.Verdict {
	m.lent = true
	return m.do(ctx, number, *child.(*part))
}

// fallbackFailing says that the fallback fails all it gets, or, with nil, that it works again.
func (rt *Route) fallbackFailing(err error) {
	if err == nil {
		rt.Log.Info("fallback works again")
	} else {
		rt.Log.Error("the fallback fails; its messages wait as if there were no fallback", "error", err)
	}
	rt.Home.Reports.Fallback(rt.Name(), err)
}

// fallbackStatus is nil without a fallback.
func (rt *Route) fallbackStatus() *control.FallbackStatus {
	s, ok := rt.Group.Fallback()
	if !ok {
		return nil
	}
	return &control.FallbackStatus{
		When: rt.Now().Fallback.When, Running: s.Running, Stuck: s.Stuck, Done: s.Done, Failed: s.Failed, FailedInRow: s.Row,
		FailingSince: known(s.Since), Error: control.Cut(settle.ErrorText(s.Err), control.MaxText),
	}
}
