package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/permission"
)

// probe is a message that has no effect but to have the server say whether its subject is permitted.
type probe struct {
	what string
	msg  *nats.Msg
}

// checkPermissions finds the subjects that this user may not publish to, of sources that were looked at, and of what they
// share. The server reports a violation out of band and leaves the publisher to its time-out, so each subject that relay needs
// is tried with something that has no effect, and the connection is asked what it was told. It keeps the latest violation
// only: all are tried together, and each by itself if anything was said.
func (r *Relay) checkPermissions(ctx context.Context, sources []*source, shared bool) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	r.probing.Lock()
	defer r.probing.Unlock()
	var probes []probe
	for _, s := range sources {
		probes = append(probes, s.setup.probes()...)
	}
	if shared {
		probes = append(probes, r.sharedProbes()...)
	}
	old := r.nc.LastError()
	for _, p := range probes {
		if err := r.nc.PublishMsg(p.msg); err != nil {
			return err
		}
	}
	if err := r.nc.FlushWithContext(ctx); err != nil {
		return err
	}
	if last := r.nc.LastError(); last == old || permission.Of(last) == nil {
		return nil
	}
	var faults []error
	for _, p := range probes {
		err := r.permitted(ctx, p.msg)
		var v *permission.Error
		switch {
		case errors.As(err, &v):
			faults = append(faults, &SetupError{Err: fmt.Errorf("%s: %w", p.what, v)})
		case err != nil:
			return err
		}
	}
	return errors.Join(faults...)
}

// probes are those of a source.
func (s *setup) probes() (list []probe) {
	r := s.relay
	if s.have == nil {
		to := r.api + "CONSUMER.CREATE." + s.stream + "." + s.durable
		if f := s.want.FilterSubject; f != "" {
			to += "." + f
		}
		// For another stream than the subject names: refused. What is no JSON would be refused with a line in the server's log.
		list = append(list, probe{"making durable " + s.durable, &nats.Msg{Subject: to, Reply: r.nc.NewInbox(), Data: []byte(`{"stream_name":"-"}`)}})
	}
	return append(list,
		// Not JSON: answered with a 400.
		probe{"pulling from durable " + s.durable, &nats.Msg{
			Subject: r.api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable, Reply: r.nc.NewInbox(), Data: []byte("{"),
		}},
		// Progress of a sequence that cannot be pending.
		probe{"acknowledging on durable " + s.durable, &nats.Msg{
			Subject: "$JS.ACK." + s.stream + "." + s.durable + ".1.0.0.0.0", Data: []byte("+WPI"),
		}})
}

// sharedProbes are those of what routes share.
func (r *Relay) sharedProbes() (list []probe) {
	// Refused by the stream, which is not called so.
	elsewhere := nats.Header{nats.ExpectedStreamHdr: {"-"}}
	try := func(what, subject string) {
		list = append(list, probe{what, &nats.Msg{Subject: subject, Header: elsewhere, Reply: r.nc.NewInbox()}})
	}
	tried := make(map[string]bool)
	for _, rt := range r.all() {
		if p := r.deadPrefix(rt.cfg); !tried[p] {
			tried[p] = true
			try("storing dead letters", p+".preflight")
		}
	}
	try("parking messages", r.cfg.Service+".park.preflight")
	if r.cfg.Domain == "" { // else they go by the API's prefix, which other requests have tried
		try("counting attempts", "$KV."+r.attemptsName()+".preflight")
		if r.lives.Load() != nil {
			try("saying that this process lives", "$KV."+r.instancesName()+".preflight")
		}
		try("storing large dead letters", "$O."+r.dead.Bucket()+".M.preflight")
	}
	return list
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
