package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// Plan says what would become of messages if a configuration ran, by the server as it is now.
type Plan struct {
	// Streams do not exist, and are made first.
	Streams  []StreamPlan  `json:"streams,omitempty"`
	Durables []DurablePlan `json:"durables"`
	// Divided are routes with partitions.
	Divided []DividedPlan `json:"divided,omitempty"`
	// Left is what waits on the server for routes, durables and streams that the configuration does not have. What instances with another
	// configuration use now is among it.
	Left []Orphan `json:"left"`
	// Faults are why relay would not start with it, or would refuse a reload, beside those of durables.
	Faults []string `json:"faults"`
}

// StreamPlan is a stream that is made.
type StreamPlan struct {
	Stream   string   `json:"stream"`
	Subjects []string `json:"subjects"`
}

// What a configuration does with a durable.
const (
	DurableStays   = "stays"   // and goes on where it is
	DurableMade    = "made"    // it does not exist
	DurableChanged = "changed" // its subjects, or how many instances pull from it
	DurableRefused = "refused" // relay does not use it as it is
)

// DurablePlan is what a configuration does with the durable of some routes, and what that delivers.
type DurablePlan struct {
	Stream  string   `json:"stream"`
	Durable string   `json:"durable"`
	Routes  []string `json:"routes"`
	// Service is the one that made it, when it is another one, of which nothing but this durable is taken over: retries and dead letters stay
	// under its name.
	Service string `json:"service,omitempty"`
	// Does is one of DurableStays and the others, and Why what keeps relay from using it, or what is changed.
	Does string   `json:"does"`
	Why  []string `json:"why,omitempty"`
	// Waits are messages that it has not delivered: of one that is made, from its start on. Outstanding are delivered and not settled.
	Waits       uint64 `json:"waits"`
	Outstanding int    `json:"outstanding"`
	// Start is where one begins that is made, and Skipped are messages on its subjects that are stored before that: nobody gets them.
	Start   string `json:"start,omitempty"`
	Skipped uint64 `json:"skipped,omitempty"`
	// Again is what one that is made delivers, or one that has passed it hands over, although it was handled before. With start: all a reload
	// refuses that.
	Again []control.Again `json:"again,omitempty"`
	// CatchUp are messages that it has passed, and that a route wants now.
	CatchUp []CatchUpPlan `json:"catch_up,omitempty"`
	// Unwanted are subjects that it goes on to deliver, and that no route of the configuration reads from it: such messages are kept in the
	// retry stream until a route wants them. Config.Adopt ends that.
	Unwanted []string `json:"unwanted,omitempty"`
}

// DividedPlan is what a configuration does with the partitions of a route.
type DividedPlan struct {
	Route string `json:"route"`
	// Does is DurableStays, DurableMade or DurableChanged, and Stream the one that holds the messages of the partitions, or will.
	Does       string `json:"does"`
	Stream     string `json:"stream"`
	Partitions int    `json:"partitions"`
	// Before is how many there are now.
	Before int `json:"before,omitempty"`
	// Start is where the messages of partitions begin that are made.
	Start string `json:"start,omitempty"`
}

// CatchUpPlan are messages on subjects that a route gets for the first time, from a durable that has passed them.
type CatchUpPlan struct {
	Route    string `json:"route"`
	Subjects string `json:"subjects"`
	// Messages are handed over to the route, as its start says; Skipped are those from before that.
	Messages uint64 `json:"messages"`
	Skipped  uint64 `json:"skipped,omitempty"`
}

// Refused tells whether relay would not start with the configuration, or would refuse to reload it.
func (p *Plan) Refused() bool {
	return len(p.Faults) > 0 || slices.ContainsFunc(p.Durables, func(d DurablePlan) bool { return d.Does == DurableRefused || d.Repeats() })
}

// Repeats tells whether a reload would be refused because of what is delivered again.
func (d *DurablePlan) Repeats() bool {
	return slices.ContainsFunc(d.Again, func(a control.Again) bool { return a.All })
}

// Plan compares the routes with what is on the server, and changes nothing there: to count messages it makes consumers that deliver nothing, and
// removes them. Streams in made do not exist yet, and somebody makes them before the Relay starts: routes find their subjects there. It is for a
// Relay that does not run. It waits for the server; an error means that this could not answer.
func (r *Relay) Plan(ctx context.Context, made ...jetstream.StreamConfig) (*Plan, error) {
	if err := r.attempt(ctx, func(ctx context.Context) error { return CheckJetStream(ctx, r.js) }); err != nil {
		return nil, err
	}
	r.preview = &preview{made}
	r.retries = retry.NamedStream(r.js, r.cfg.Service, r.retryStreamName())
	ledgers, err := audit.Attach(ctx, r.js, r.cfg.Service)
	if err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, err
	}
	r.ledgers = ledgers
	plan := &Plan{Durables: []DurablePlan{}, Left: []Orphan{}, Faults: []string{}}
	for _, c := range made {
		plan.Streams = append(plan.Streams, StreamPlan{c.Name, c.Subjects})
	}
	var plain []*route
	for _, rt := range r.all() {
		if rt.cfg.Partitions == 0 {
			plain = append(plain, rt)
		} else if d, err := r.planDivision(ctx, rt.cfg); err != nil {
			plan.Faults = append(plan.Faults, setupError(rt.cfg.Name, err).Error())
		} else {
			plan.Divided = append(plan.Divided, d)
		}
	}
	units, without, faults := r.plan(ctx, plain, r.once)
	for _, err := range append(faultsOf(without), faults...) {
		plan.Faults = append(plan.Faults, err.Error())
	}
	var mains []*source
	for _, u := range units {
		if r.preview.makes(u.main.stream) != nil {
			plan.Durables = append(plan.Durables, u.main.setup.plannedAnew())
		} else {
			mains = append(mains, u.main)
		}
	}
	r.sideBySide(ctx, mains, lookAt)
	r.lookTwice(ctx, mains)
	for _, s := range mains {
		d, err := s.setup.planned(ctx)
		if err != nil {
			return nil, err
		}
		plan.Durables = append(plan.Durables, d)
	}
	slices.SortFunc(plan.Durables, func(a, b DurablePlan) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Durable, b.Durable))
	})
	var routes []Route
	for _, rt := range r.all() {
		routes = append(routes, rt.cfg)
	}
	search := r.search()
	search.Used = true
	left, err := search.All(ctx, forOrphans(routes))
	plan.Left = append(plan.Left, left...)
	return plan, err
}

// plannedAnew is a durable that is made on a stream without messages.
func (s *setup) plannedAnew() DurablePlan {
	d := DurablePlan{Stream: s.stream, Durable: s.durable, Does: DurableMade, Start: s.routes[0].cfg.Start.String()}
	for _, rt := range s.routes {
		d.Routes = append(d.Routes, rt.cfg.Name)
	}
	return d
}

// planned is what becomes of the durable of a source that was looked at.
func (s *setup) planned(ctx context.Context) (d DurablePlan, err error) {
	d = s.plannedAnew()
	d.Does, d.Start = DurableStays, ""
	if s.err != nil {
		d.Does, d.Why = DurableRefused, []string{s.err.Error()}
		return d, nil //nolint:nilerr // the plan tells of the error
	}
	if s.Have == nil {
		w := s.Waiting
		d = s.plannedAnew()
		d.Waits, d.Skipped, d.Again = w.Chosen, w.All-min(w.All, w.Chosen), s.Again
		return d, nil
	}
	info := s.Have.CachedInfo()
	d.Waits, d.Outstanding, d.Again = info.NumPending, info.NumAckPending, s.Again
	c := s.JudgeToUse(info.Config, s.On)
	if d.Why = c.Differs(); len(d.Why) > 0 {
		d.Does = DurableChanged
	}
	if !s.relay.cfg.Adopt && info.Config.AckWait != c.Want.AckWait {
		d.Why = append(d.Why, "which a reload changes, and a start refuses without --adopt")
	}
	if d.CatchUp, err = s.passedBefore(ctx, info); err != nil || s.relay.cfg.Adopt {
		return d, err
	}
	m := provision.MarkOf(info.Config.Metadata)
	if m.Service != s.relay.cfg.Service {
		d.Service = m.Service
		return d, nil
	}
	for name, patterns := range m.Routes {
		for _, p := range patterns {
			if !slices.ContainsFunc(s.patterns, func(d dispatch) bool { return d.route.cfg.Name == name && subject.Covers(d.pattern, p) }) {
				d.Unwanted = append(d.Unwanted, fmt.Sprintf("%s (route %s)", p, name))
			}
		}
	}
	slices.Sort(d.Unwanted)
	return d, nil
}

// passedBefore is what a durable that is widened has passed.
func (s *setup) passedBefore(ctx context.Context, info *jetstream.ConsumerInfo) (list []CatchUpPlan, err error) {
	var record *catchup.Record
	if s.relay.ledgers != nil {
		if record, err = catchup.NewBook(s.relay.ledgers).Get(ctx, s.stream, s.durable); err != nil {
			return nil, err
		}
		if record != nil && !record.Created.Equal(info.Created) {
			record = nil
		}
	}
	last := s.On.CachedInfo().State.LastSeq
	for _, g := range s.catchUp.Gap(info.Config, last) {
		begun := catchup.Record{}
		if record != nil {
			begun.Ranges = slices.DeleteFunc(slices.Clone(record.Ranges), func(h catchup.Range) bool { return !h.Left })
		}
		begun.Begin(g) // where it goes on when the durable had these subjects before
		g = begun.Ranges[slices.IndexFunc(begun.Ranges, func(h catchup.Range) bool { return h.Pattern == g.Pattern && !h.Left })]
		to, err := s.inRange(ctx, g)
		if err != nil {
			return nil, err
		}
		all := g
		all.From, all.Since = 0, time.Time{}
		held, err := s.inRange(ctx, all)
		if err != nil {
			return nil, err
		}
		if held > 0 {
			list = append(list, CatchUpPlan{Route: s.routeOfPattern(g.Pattern).cfg.Name, Subjects: g.Pattern, Messages: to, Skipped: held - min(held, to)})
		}
	}
	return list, nil
}

// inRange is how many messages of a range the stream holds. On a work queue, which lets nobody else count, it is all on its subjects.
func (s *setup) inRange(ctx context.Context, g catchup.Range) (uint64, error) {
	st := s.On.CachedInfo()
	if st.State.Msgs == 0 || g.Next() > st.State.LastSeq {
		return 0, nil
	}
	if st.Config.Retention == jetstream.WorkQueuePolicy {
		return s.catchUp.Holds(ctx, g)
	}
	count := func(patterns []string) (n uint64, err error) {
		for _, p := range patterns {
			c := s.Want
			c.FilterSubject, c.FilterSubjects = p, nil
			c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverByStartSequencePolicy, g.Next(), nil
			more, err := s.Count(ctx, s.On, c)
			if err != nil {
				return 0, err
			}
			if !g.Since.IsZero() && more > 0 {
				c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &g.Since
				later, err := s.Count(ctx, s.On, c)
				if err != nil {
					return 0, err
				}
				more = min(more, later)
			}
			n += more
		}
		return n, nil
	}
	n, err := count([]string{g.Pattern})
	if err != nil || n == 0 {
		return n, err
	}
	had, err := count(durables.Common([]string{g.Pattern}, g.Except)) // which the durable was for
	return n - min(n, had), err
}

// preview is what a Relay that only says what it would do takes for granted.
type preview struct {
	made []jetstream.StreamConfig // streams that do not exist yet
}

// makes is a stream that does not exist yet; nil: it exists, or nobody makes it.
func (p *preview) makes(stream string) *jetstream.StreamConfig {
	if p != nil {
		for i := range p.made {
			if p.made[i].Name == stream {
				return &p.made[i]
			}
		}
	}
	return nil
}

// streamOf is the stream that will hold a subject; empty: none.
func (p *preview) streamOf(subj string) string {
	if p == nil {
		return ""
	}
	for _, c := range p.made {
		if slices.ContainsFunc(c.Subjects, func(s string) bool { return subject.Covers(s, subj) }) {
			return c.Name
		}
	}
	return ""
}
