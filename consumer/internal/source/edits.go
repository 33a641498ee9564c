package source

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/subject"
)

// A durable may be edited while relay runs: by an operator, by another tool, by an instance with another configuration. The
// watchdog compares it at each look. Under some settings messages are lost or handled wrongly, and nobody would notice;
// then nothing is pulled until they are changed back.

// inspect compares the durable with what it should be, and brings about what is for relay itself to change.
func (s *Source) inspect(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo, began time.Time) (e health.Edits) {
	if info.Paused {
		e.Paused = time.Now().Add(info.PauseRemaining)
	}
	c := s.Setup.Judge(info.Config, stream, provision.Ever)
	m := provision.MarkOf(info.Config.Metadata)
	// Whether one instance pulls or all do is decided at the start: two with different configurations would change it for ever in turn.
	if adopted := m.Adopted != s.Setup.adopted; c.Own && !c.Policy && !adopted {
		s.log.Info("set the filter of the durable to the subjects of its routes", "was", provision.Filters(info.Config), "is", provision.Filters(c.Want))
		own, err := s.in.JS.Stream(ctx, s.stream) // not the one that others look at
		var changed jetstream.Consumer
		if err == nil {
			changed, err = s.Setup.Change(ctx, own, info.Config, c.Want)
		}
		if err != nil {
			s.log.Warn("cannot set the filter of the durable to the subjects of its routes; retrying", "error", err)
		} else {
			m = provision.MarkOf(changed.CachedInfo().Config.Metadata)
		}
	} else {
		s.sort(&e, c.Differs(), provision.Filters(info.Config))
	}
	s.Unwanted.learn(stream.CachedInfo().Config, m, began)
	s.CatchUp.Note(ctx, info)
	return e
}

// sort tells apart what is dangerous. With a filter that lets all pass that is wanted, what else it lets pass is a stray.
func (b *binding) sort(e *health.Edits, differs, filter []string) {
	all := len(filter) == 0 || !slices.ContainsFunc(b.patterns, func(d dispatch) bool {
		return !slices.ContainsFunc(filter, func(f string) bool { return subject.Covers(f, d.pattern) })
	})
	for _, text := range differs {
		switch {
		case provision.Setting(text) == "filter_subjects" && all:
		case provision.IsHarmless(text):
			e.Slow = append(e.Slow, text)
		default:
			e.Stop = append(e.Stop, text)
		}
	}
}

// edited acts on what differs.
func (s *Source) edited(e health.Edits) {
	was, changed := s.Health.Edit(e)
	if !changed {
		return
	}
	switch {
	case len(e.Stop) > 0:
		s.log.Error("the durable was edited while relay runs; nothing is pulled from it until the edit is undone or relay is restarted with --adopt",
			"differs", plain.And(e.Stop))
	case len(was.Stop) > 0:
		s.log.Info("the durable has the required settings again; pulling again")
		s.Pulls.Wake()
	}
	if len(e.Slow) > 0 {
		s.log.Warn("the durable was edited while relay runs; undo the edit, or restart relay with --adopt", "differs", plain.And(e.Slow))
	}
}
