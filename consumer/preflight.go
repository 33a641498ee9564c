package consumer

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/permission"
)

// checkPermissions finds the subjects that this user may not publish to, of sources that were looked at, and of what else is given.
func checkPermissions(ctx context.Context, by *permission.Prober, sources []*source, also ...permission.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	probes := slices.Clone(also)
	for _, s := range sources {
		probes = append(probes, s.setup.probes()...)
	}
	refused, err := by.Try(ctx, probes)
	var faults []error
	for _, err := range refused {
		faults = append(faults, &SetupError{Err: err})
	}
	return errors.Join(append(faults, err)...)
}

// probes are those of a source.
func (s *setup) probes() (list []permission.Probe) {
	r := s.relay
	if s.Have == nil {
		to := r.api + "CONSUMER.CREATE." + s.stream + "." + s.durable
		if f := s.Want.FilterSubject; f != "" {
			to += "." + f
		}
		// For another stream than the subject names: refused. What is no JSON would be refused with a line in the server's log.
		list = append(list, permission.Probe{What: "making durable " + s.durable, Msg: &nats.Msg{Subject: to, Reply: r.nc.NewInbox(), Data: []byte(`{"stream_name":"-"}`)}})
	}
	return append(list,
		// Not JSON: answered with a 400.
		permission.Probe{What: "pulling from durable " + s.durable, Msg: &nats.Msg{
			Subject: r.api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable, Reply: r.nc.NewInbox(), Data: []byte("{"),
		}},
		// Progress of a sequence that cannot be pending.
		permission.Probe{What: "acknowledging on durable " + s.durable, Msg: &nats.Msg{
			Subject: "$JS.ACK." + s.stream + "." + s.durable + ".1.0.0.0.0", Data: []byte("+WPI"),
		}})
}

// sharedProbes are those of what routes share.
func (l *startup) sharedProbes() (list []permission.Probe) {
	// Refused by the stream, which is not called so.
	elsewhere := nats.Header{nats.ExpectedStreamHdr: {"-"}}
	try := func(what, subject string) {
		list = append(list, permission.Probe{What: what, Msg: &nats.Msg{Subject: subject, Header: elsewhere, Reply: l.nc.NewInbox()}})
	}
	tried := make(map[string]bool)
	for _, rt := range l.routes.all() {
		if p := l.stores.DeadPrefix(rt.cfg.DeadLetter.Prefix); !tried[p] {
			tried[p] = true
			try("storing dead letters", p+".preflight")
		}
	}
	try("parking messages", l.cfg.Service+".park.preflight")
	if l.cfg.Domain == "" { // else they go by the API's prefix, which other requests have tried
		try("counting attempts", "$KV."+l.stores.AttemptsBucket()+".preflight")
		if l.stores.Lives.Load() != nil {
			try("recording that this process is alive", "$KV."+l.stores.InstancesBucket()+".preflight")
		}
		try("storing large dead letters", "$O."+l.stores.Dead.Bucket()+".M.preflight")
	}
	return list
}
