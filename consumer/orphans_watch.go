package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
)

// What an instance finds of orphans by itself, at its start and hourly.

// Orphan is something of relay's that waits for a route which is not there: one that was renamed, taken away, or given another stream or durable.
type Orphan = orphans.Orphan

// Orphans finds what waits for routes that are not among these, of which the names and durables count. What another running instance pulls is no
// orphan. It reads the subjects of the retry stream and of the dead letters, and asks for every durable of every stream.
func Orphans(ctx context.Context, js jetstream.JetStream, service string, routes []Route) ([]Orphan, error) {
	return orphans.Search{JS: js, Service: service, Answers: anyAnswers(js)}.All(ctx, forOrphans(routes))
}

// forOrphans is what the search for orphans has to know of routes.
func forOrphans(routes []Route) (list []orphans.Route) {
	for _, rt := range routes {
		rt = rt.WithDefaults()
		list = append(list, orphans.Route{Name: rt.Name, Durable: rt.Durable, Divided: rt.Partitions > 0})
	}
	return list
}

// anyAnswers asks whether an instance of a service answers now.
func anyAnswers(js jetstream.JetStream) func(ctx context.Context, service string) (bool, error) {
	return func(ctx context.Context, service string) (bool, error) {
		_, err := control.AskStatus(ctx, js.Conn(), service)
		if errors.Is(err, control.ErrNobody) {
			return false, nil
		}
		return err == nil, err
	}
}

// search is that of this instance.
func (r *Relay) search() orphans.Search {
	return orphans.Search{JS: r.js, Service: r.cfg.Service, Answers: anyAnswers(r.js)}
}

// orphansLogged is how many of them the log names at a time.
const orphansLogged = 10

// findOrphans gives messages that no route wanted to those that want them now, and says what still waits for nobody.
func (r *Relay) findOrphans(ctx context.Context) {
	// Also of routes that stand by, or whose durable is not open: what is theirs waits for nobody else.
	own := make(map[[2]string]bool)
	for _, u := range r.unitsOfRoutes() {
		for _, rt := range u.main.routes {
			own[[2]string{rt.cfg.Name, u.main.stream}] = true
			if p := rt.cfg.part; p != nil {
				own[[2]string{p.Route, p.Stream}] = true
			}
		}
	}
	var found []Orphan
	for _, s := range r.openSources() {
		if s.due {
			continue
		}
		n, err := r.retries.Move(ctx, retry.Move{From: retry.NoRoute, Stream: s.stream, To: func(o retry.Origin) string {
			if rt := s.routeOf(o.Subject); rt != nil && o.Consumer == s.durable {
				return rt.cfg.Name
			}
			return ""
		}})
		if n > 0 {
			s.log.Info("messages that no route wanted when they came go to the routes that want them now", "count", n)
		}
		if err != nil {
			s.log.Debug("messages that no route wanted could not be searched", "error", err)
		}
	}
	streams := r.streamsOfRoutes()
	for _, name := range streams {
		if stream, err := r.js.Stream(ctx, name); err == nil {
			list, _ := r.search().Durables(ctx, stream, func(route, durable string) bool { return r.has(name, durable) || r.standsBy(route, durable) })
			found = append(found, list...)
		}
	}
	found = append(found, r.leftPartitions(ctx)...)
	found = append(found, r.leftByOthers(ctx, streams)...)
	if !r.allRetriesAreOf(ctx, own) {
		list, err := r.search().Retries(ctx, func(route, stream string) bool { return own[[2]string{route, stream}] })
		if err != nil {
			r.log.Debug("the retry stream could not be searched for messages that wait for no route", "error", err)
			return
		}
		found = append(found, list...)
	}
	for i, o := range found {
		if i == orphansLogged && len(found) > i+1 {
			r.log.Warn("more waits for routes that are not here: relay orphans ls", "more", len(found)-i)
			break
		}
		r.log.Warn("something waits for a route that is not here", "orphan", o.String())
	}
	r.orphans.Store(&found)
}

// allRetriesAreOf tells whether the retry stream holds nothing but what waits for these routes and streams. To count those takes the server a moment; to
// list all subjects, to find the others, takes it seconds for a million, in which it does little else.
func (r *Relay) allRetriesAreOf(ctx context.Context, own map[[2]string]bool) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	stream, err := r.js.Stream(ctx, r.retries.Name())
	if err != nil {
		return false
	}
	total := stream.CachedInfo().State.Msgs
	if total == 0 || total < listedAtOnce {
		return total == 0
	}
	// What comes due meanwhile is counted once at most.
	for _, kind := range []string{".due.", ".park."} {
		for of := range own {
			n, err := r.countMatching(ctx, r.retries.Name(), r.cfg.Service+kind+of[0]+"."+of[1]+".>")
			if err != nil {
				return false
			}
			if n.n >= total {
				return true
			}
			total -= n.n
		}
	}
	return false
}

// listedAtOnce is below how many messages all subjects are listed in one answer of the server.
const listedAtOnce = 10_000

// leftByOthers is what services have left of which no instance runs. The user of an instance may see only its own streams: then there is nothing to tell.
func (r *Relay) leftByOthers(ctx context.Context, of []string) (list []Orphan) {
	names := r.js.StreamNames(ctx, jetstream.WithStreamListSubject("*.park.>"))
	for name := range names.Name() {
		if name == r.retries.Name() {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, settleTimeout)
		if stream, err := r.js.Stream(ask, name); err == nil {
			if other := orphans.ServiceOf(stream.CachedInfo()); other != "" {
				more, err := r.search().LeftBy(ask, other, of)
				if err != nil {
					r.log.Debug("another service could not be searched for what it left", "service", other, "error", err)
				}
				list = append(list, more...)
			}
		}
		cancel()
	}
	return list
}

// leftPartitions are the streams of partitions that no instance works on.
func (r *Relay) leftPartitions(ctx context.Context) (list []Orphan) {
	names := r.js.StreamNames(ctx, jetstream.WithStreamListSubject(r.cfg.Service+".part.>"))
	for name := range names.Name() {
		ask, cancel := context.WithTimeout(ctx, settleTimeout)
		if stream, err := r.js.Stream(ask, name); err == nil {
			if s, ok := partition.Of(stream.CachedInfo()); ok && s.Service == r.cfg.Service && r.divided.get(s.Route) == nil && !r.othersDivide(s) {
				left, err := r.search().Partitions(ask, s)
				if err != nil {
					r.log.Debug("a stream of partitions could not be searched for what is left there", "stream", name, "error", err)
				}
				list = append(list, left...)
			}
		}
		cancel()
	}
	return list
}

// othersDivide tells whether another instance works on the partitions of a stream.
func (r *Relay) othersDivide(s *partition.Stream) bool {
	f := r.membership.Now()
	if f == nil {
		return false
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		_, told := stateOf(m).Generations[s.Route]
		return m.Gone.IsZero() && told
	})
}

// streamsOfRoutes are those that the routes read, each once, whether their durables are open or not.
func (r *Relay) streamsOfRoutes() (list []string) {
	for _, u := range r.unitsOfRoutes() {
		if !slices.Contains(list, u.main.stream) {
			list = append(list, u.main.stream)
		}
	}
	return list
}

// unitsOfRoutes are those of all routes, whether they are open or not: one of which another instance has the claim is not.
func (r *Relay) unitsOfRoutes() (list []*unit) {
	for _, rt := range r.all() {
		if u := rt.unit.Load(); u != nil && !slices.Contains(list, u) {
			list = append(list, u)
		}
	}
	return list
}

// has tells whether a durable is one of this instance, or of a route that another instance has the claim of.
func (r *Relay) has(stream, durable string) bool {
	if slices.ContainsFunc(r.openSources(), func(s *source) bool { return s.stream == stream && s.durable == durable }) ||
		slices.ContainsFunc(r.unitsOfRoutes(), func(u *unit) bool { return u.main.stream == stream && u.main.durable == durable }) {
		return true
	}
	f := r.membership.Now()
	if f == nil {
		return false
	}
	_, held := f.Holder(resourceOf(stream, durable))
	return held
}

// standsBy tells whether another instance would take a route of which one instance at a time handles messages, with this durable.
func (r *Relay) standsBy(route, durable string) bool {
	f := r.membership.Now()
	if f == nil {
		return false
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		return m.Gone.IsZero() && m.Instance != r.cfg.Instance && stateOf(m).reads(route, durable)
	})
}

// watchOrphans looks for them at the start and hourly.
func (r *Relay) watchOrphans(ctx context.Context) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		r.findOrphans(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// orphaned is what was found last.
func (r *Relay) orphaned() []Orphan {
	if list := r.orphans.Load(); list != nil {
		return *list
	}
	return nil
}
