package consumer

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/permission"
)

// checkPermissions finds the subjects that this user may not publish to. The server reports a violation out of band and
// leaves the publisher to its time-out, so each subject that relay needs is tried with something that has no effect, and
// the connection is asked what it was told.
func (r *Relay) checkPermissions(ctx context.Context, sources []*source) (faults []error) {
	try := func(what string, m *nats.Msg) {
		if err := r.permitted(ctx, m); err != nil {
			faults = append(faults, &SetupError{Err: fmt.Errorf("%s: %w", what, err)})
		}
	}
	for _, s := range sources {
		// Not JSON: answered with a 400.
		try("pulling from durable "+s.durable, &nats.Msg{
			Subject: r.api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable, Reply: fmt.Sprintf("%s.p0.%d", s.inbox, preflightPull), Data: []byte("{"),
		})
		// Progress of a sequence that cannot be pending.
		try("acknowledging on durable "+s.durable, &nats.Msg{
			Subject: "$JS.ACK." + s.stream + "." + s.durable + ".1.0.0.0.0", Data: []byte("+WPI"),
		})
	}
	// Refused by the stream, which is not called so.
	elsewhere := nats.Header{nats.ExpectedStreamHdr: {"-"}}
	tried := make(map[string]bool)
	for _, rt := range r.routes {
		if p := r.deadPrefix(rt.cfg); !tried[p] {
			tried[p] = true
			try("storing dead letters", &nats.Msg{Subject: p + ".preflight", Header: elsewhere, Reply: r.nc.NewInbox()})
		}
	}
	try("parking messages", &nats.Msg{Subject: r.cfg.Service + ".park.preflight", Header: elsewhere, Reply: r.nc.NewInbox()})
	if r.cfg.Domain == "" { // else they go by the API's prefix, which other requests have tried
		try("counting attempts", &nats.Msg{Subject: "$KV." + r.attemptsName() + ".preflight", Header: elsewhere, Reply: r.nc.NewInbox()})
		if r.lives != nil {
			try("saying that this process lives", &nats.Msg{Subject: "$KV." + r.instancesName() + ".preflight", Header: elsewhere, Reply: r.nc.NewInbox()})
		}
		try("storing large dead letters", &nats.Msg{Subject: "$O." + r.dead.Bucket() + ".M.preflight", Header: elsewhere, Reply: r.nc.NewInbox()})
	}
	return faults
}

// permitted publishes m and reports a violation for its subject.
func (r *Relay) permitted(ctx context.Context, m *nats.Msg) error {
	if err := r.nc.PublishMsg(m); err != nil {
		return err
	}
	if err := r.nc.FlushWithContext(ctx); err != nil {
		return err
	}
	if v := permission.Of(r.nc.LastError()); v != nil && v.Subject == m.Subject {
		return v
	}
	return nil
}
