package engine

import (
	"context"
	"errors"

	"github.com/relaymq/relay/consumer/internal/route"
)

// liveChanges are routes of a change that may change in place, by name.
func (c Change) liveChanges(routes []*route.Route, cfgs map[string]route.Spec) map[string]*route.LiveChange {
	list := make(map[string]*route.LiveChange)
	if c.anew {
		return list
	}
	for _, rt := range routes {
		for _, u := range c.Update {
			if cfg := cfgs[u.Name]; u.Name == rt.Spec.Name && rt.ChangesLive(cfg) {
				list[u.Name] = &route.LiveChange{Route: rt, Spec: cfg}
			}
		}
	}
	return list
}

// prepareAll prepares what changes in place, side by side with what it is to replace. With an error nothing of it is left.
func (p *checkedChange) prepareAll(ctx context.Context) error {
	var faults []error
	for _, b := range p.lives {
		if err := b.Prepare(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		p.undo(ctx)
	}
	return errors.Join(faults...)
}

// undo ends what a change has made that is not to be.
func (p *checkedChange) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	for _, b := range p.lives {
		b.Undo(ctx)
	}
	p.discard()
}
