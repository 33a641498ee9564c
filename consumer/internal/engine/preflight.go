package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/permission"
)

// checkPermissions finds the subjects that this user may not publish to, of sources that were looked at, and of what else is given.
func checkPermissions(ctx context.Context, by *permission.Prober, sources []*source.Source, also ...permission.Probe) error {
	probes := slices.Clone(also)
	for _, s := range sources {
		probes = append(probes, s.Setup.Probes()...)
	}
	refused, err := by.Try(ctx, probes)
	var faults []error
	for _, err := range refused {
		faults = append(faults, &route.SetupError{Err: err})
	}
	return errors.Join(append(faults, err)...)
}

// sharedProbes are those of what routes share.
func (l *startup) sharedProbes() (list []permission.Probe) {
	// Refused by the stream, which is not called so.
	elsewhere := nats.Header{nats.ExpectedStreamHdr: {"-"}}
	try := func(what, subject string) {
		list = append(list, permission.Probe{What: what, Msg: &nats.Msg{Subject: subject, Header: elsewhere, Reply: l.Conn.NewInbox()}})
	}
	tried := make(map[string]bool)
	for _, rt := range l.Routes.All() {
		if p := l.Stores.DeadPrefix(rt.Spec.DeadPrefix); !tried[p] {
			tried[p] = true
			try("storing dead letters", p+".preflight")
		}
	}
	try("parking messages", l.Config.Service+".park.preflight")
	if l.Config.Domain == "" { // else they go by the API's prefix, which other requests have tried
		try("counting attempts", "$KV."+l.Stores.AttemptsBucket()+".preflight")
		if l.Stores.Lives.Load() != nil {
			try("recording that this process is alive", "$KV."+l.Stores.InstancesBucket()+".preflight")
		}
		try("storing large dead letters", "$O."+l.Stores.Dead.Bucket()+".M.preflight")
	}
	return list
}
