package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// The subjects of all routes, and those of all streams, are compared pairwise: this bounds the time that takes.
const (
	maxSubjects      = 1000
	maxSubjectsBytes = 32 << 10
)

// claim is a pattern of some route or stream.
type claim struct {
	key     string // of the pattern: routes[1].subjects[0]
	owner   int    // position of the route or stream
	pattern string
}

// claims collects the patterns that are well-formed. ok is false when there are too many to compare.
func (c *collector) claims(section string, count int, subjects func(int) []string) (all []claim, ok bool) {
	n, size := 0, 0
	for i := range count {
		for j, p := range subjects(i) {
			n++
			size += len(p)
			if subject.ValidatePattern(p) == nil {
				all = append(all, claim{fmt.Sprintf("%s[%d].subjects[%d]", section, i, j), i, p})
			}
		}
	}
	if n > maxSubjects || size > maxSubjectsBytes {
		c.refuse(c.at(section), section, "have %d subjects of %d bytes together: at most %d and %d are allowed", n, size, maxSubjects, maxSubjectsBytes)
		return nil, false
	}
	return all, true
}

// reserved is a space of subjects that relay publishes to.
type reserved struct {
	pattern string
	what    string
}

// routes checks each route, and then what only shows when routes and streams are seen together.
func (c *collector) routes(cfg *Config) {
	if len(cfg.Routes) == 0 && !c.client {
		c.fault("routes", "at least one route is required")
	}
	routes, okRoutes := c.claims("routes", len(cfg.Routes), func(i int) []string { return cfg.Routes[i].Subjects })
	streams, okStreams := c.claims("streams", len(cfg.Streams), func(i int) []string { return cfg.Streams[i].Subjects })
	if !okRoutes || !okStreams {
		return
	}
	for i, r := range cfg.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		c.faultsOf(key, r.check())
		c.faultsOf(key, r.CheckLimits(cfg.Limits))
		c.batch(key, r)
		for _, p := range r.parts() {
			at := key + "." + p.key
			switch kinds := p.given; len(kinds) {
			case 0:
				c.fault(at, "is required: one of %s", c.root.field("routes").elem.field("handler").kindNames("and"))
			case 1:
				c.faultsOf(at+"."+kinds[0], p.Validate())
			default:
				c.fault(at, "exactly one is allowed (got %s)", strings.Join(kinds, " and "))
			}
		}
	}

	own := c.reservedSubjects(cfg)
	c.keepOut(append(slices.Clone(streams), routes...), own)
	events := reserved{event.Prefix(cfg.Service) + ".>", "events"} // which routes may handle
	own = append(own, events)
	if cfg.Events.Store {
		c.keepOut(streams, []reserved{{events.pattern, "events, which events.store keeps in a stream of its own"}})
	}
	c.streamsTogether(cfg, streams)
	c.routesTogether(cfg, routes, streams)
	c.forwards(cfg, routes, own)
	c.warnAbout(cfg, routes, streams)
}

// reservedSubjects are relay's own spaces, and those that routes choose for their dead letters.
func (c *collector) reservedSubjects(cfg *Config) []reserved {
	s := cfg.Service
	own := []reserved{
		{s + ".dlq.>", "dead letters"},
		{s + ".due.>", "retries that are due"},
		{s + ".park.>", "parked messages"},
		{s + ".part.>", "the messages of routes with partitions"},
		{s + ".ctl.>", "questions to its instances"},
		{s + ".later.>", "delayed messages"},
	}
	if cfg.Archive.Outcomes {
		own = append(own, reserved{archive.Prefix(s) + ">", "outcomes of messages"})
	}
	for i, r := range cfg.Routes {
		p := r.DeadLetter.Prefix
		if p == "" || subject.ValidateLiteral(p) != nil {
			continue
		}
		mine := reserved{p + ".>", "dead letters"}
		if slices.Contains(own, mine) {
			continue
		}
		// The prefixes become the subjects of one stream, and a stream's subjects may not overlap.
		if k := slices.IndexFunc(own, func(o reserved) bool { return subject.Overlaps(o.pattern, mine.pattern) }); k >= 0 {
			c.fault(fmt.Sprintf("routes[%d].dead_letter.prefix", i), "%q overlaps %q (%s)", p, own[k].pattern, own[k].what)
			continue
		}
		own = append(own, mine)
	}
	return own
}

// OwnSubjects are patterns of what relay itself publishes to, which no message may be forwarded to.
func (c *Config) OwnSubjects() (patterns []string) {
	patterns = append(patterns, event.Prefix(c.Service)+".>")
	for _, o := range new(collector).reservedSubjects(c) {
		patterns = append(patterns, o.pattern)
	}
	return append(patterns, c.Inboxes())
}

// keepOut refuses sources that relay publishes to: its dead letters would come back as messages.
func (c *collector) keepOut(sources []claim, own []reserved) {
	for _, s := range sources {
		for _, o := range own {
			if subject.Overlaps(s.pattern, o.pattern) {
				c.fault(s.key, "%q overlaps %q, where relay publishes %s", s.pattern, o.pattern, o.what)
				break
			}
		}
	}
}

// ownStream tells whether relay makes a stream of that name itself.
func ownStream(service, name string) bool {
	upper := strings.ToUpper(service)
	return name == upper+"_DLQ" || name == retry.StreamName(service) || name == events.StreamName(service) || name == archive.StreamName(service) || strings.HasPrefix(name, "KV_") || strings.HasPrefix(name, "OBJ_")
}

func (c *collector) streamsTogether(cfg *Config, claims []claim) {
	first := map[string]int{}
	for i, s := range cfg.Streams {
		key := fmt.Sprintf("streams[%d].name", i)
		if ownStream(cfg.Service, s.Name) {
			c.fault(key, "%s is a name of relay's own streams and buckets", s.Name)
		}
		if j, ok := first[s.Name]; ok && s.Name != "" {
			c.fault(key, "%s is already the name of streams[%d]", s.Name, j)
			continue
		}
		first[s.Name] = i
	}
	for i, a := range claims {
		for _, b := range claims[:i] {
			if subject.Overlaps(a.pattern, b.pattern) {
				c.fault(a.key, "%q overlaps %s %q: a subject belongs to one stream", a.pattern, b.key, b.pattern)
				break
			}
		}
	}
}

// place is where a route's consumer is made.
type place struct {
	stream  string // "" when the server has to be asked
	durable string
}

// mayBeSame tells whether two routes can read the same stream.
func (p place) mayBeSame(q place) bool {
	return p.stream == q.stream || p.stream == "" || q.stream == ""
}

// places finds the stream of each route, and refuses a route that the declared streams cannot feed.
func (c *collector) places(cfg *Config, routes, streams []claim) []place {
	byRoute := make([][]string, len(cfg.Routes))
	declared := map[string][]string{}
	for _, s := range streams {
		name := cfg.Streams[s.owner].Name
		declared[name] = append(declared[name], s.pattern)
	}
	for _, r := range routes {
		for _, s := range streams {
			name := cfg.Streams[s.owner].Name
			if !slices.Contains(byRoute[r.owner], name) && subject.Overlaps(r.pattern, s.pattern) {
				byRoute[r.owner] = append(byRoute[r.owner], name)
			}
		}
		if named := cfg.Routes[r.owner].Stream; len(declared[named]) > 0 && !slices.ContainsFunc(declared[named], func(p string) bool { return subject.Overlaps(r.pattern, p) }) {
			c.fault(r.key, "%q is not among the subjects of stream %s", r.pattern, named)
		}
	}
	places := make([]place, len(cfg.Routes))
	for i, r := range cfg.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		places[i] = place{stream: r.Stream, durable: cmp.Or(r.Durable, r.Name)}
		if ownStream(cfg.Service, r.Stream) {
			c.fault(key+".stream", "%s is one of relay's own streams and buckets", r.Stream)
		}
		if r.Stream != "" {
			continue
		}
		switch found := byRoute[i]; len(found) {
		case 0:
		case 1:
			places[i].stream = found[0]
		default:
			c.fault(key+".subjects", "are in the streams %s, but a route reads one stream: make a route for each stream", strings.Join(found, " and "))
		}
	}
	return places
}

func (c *collector) routesTogether(cfg *Config, routes, streams []claim) {
	first := map[string]int{}
	for i, r := range cfg.Routes {
		if j, ok := first[r.Name]; ok && r.Name != "" {
			c.fault(fmt.Sprintf("routes[%d].name", i), "%s is already the name of routes[%d]", r.Name, j)
			continue
		}
		first[r.Name] = i
	}
	places := c.places(cfg, routes, streams)
	c.shared(cfg, places)
	for i, a := range routes {
		for _, b := range routes[:i] {
			p, q := places[a.owner], places[b.owner]
			if a.owner == b.owner || !p.mayBeSame(q) {
				continue
			}
			if p.durable == q.durable {
				if a.pattern == b.pattern {
					c.fault(a.key, "%q is also %s of route %s, and both routes share the durable %s: keep it in one of them", a.pattern, b.key, cfg.Routes[b.owner].Name, p.durable)
					break
				}
				continue
			}
			if subject.Overlaps(a.pattern, b.pattern) {
				c.fault(a.key, "%q overlaps %s %q of route %s: give both the same durable (the most specific subject wins), or a stream each", a.pattern, b.key, b.pattern, cfg.Routes[b.owner].Name)
				break
			}
		}
	}
}

// shared compares the routes of one consumer: what belongs to the consumer is the same in all of them.
func (c *collector) shared(cfg *Config, places []place) {
	for i, p := range places {
		j := slices.IndexFunc(places[:i], func(q place) bool { return p.durable == q.durable && p.mayBeSame(q) })
		if j < 0 || p.durable == "" {
			continue
		}
		a, b := cfg.Routes[i].WithDefaults(), cfg.Routes[j].WithDefaults()
		differ := func(key, got, want string) {
			if got != want {
				c.fault(fmt.Sprintf("routes[%d].%s", i, key), "must be the same as in route %s, which shares the durable %s (got %s and %s)", b.Name, p.durable, cmp.Or(got, "nothing"), cmp.Or(want, "nothing"))
			}
		}
		differ("start", a.Start.String(), b.Start.String())
		differ("instances", a.Instances, b.Instances)
		differ("ack_wait", a.AckWait.String(), b.AckWait.String())
	}
}
