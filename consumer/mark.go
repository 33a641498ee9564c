package consumer

import (
	"maps"
	"slices"
	"strings"

	"github.com/relaymq/relay/internal/subject"
)

// A durable that relay made says so in its metadata: for which service, and which routes with which subjects have been
// configured on it. What the routes of one instance are is not enough to know which messages are wanted: during a rolling
// change another instance on the same durable has other ones. The routes are only ever added to, but for --adopt, which
// sets those of one configuration; so no instance takes away the messages of another one by itself.

const (
	markService = "relay.service"
	markAdopted = "relay.adopted" // when --adopt set the routes
	markRoute   = "relay.route."  // followed by its name; the value is its subjects with spaces between
)

type mark struct {
	service string
	adopted string
	routes  map[string][]string
}

func markOf(metadata map[string]string) mark {
	m := mark{service: metadata[markService], adopted: metadata[markAdopted], routes: map[string][]string{}}
	for name, value := range metadata {
		if route, ok := strings.CutPrefix(name, markRoute); ok {
			m.routes[route] = strings.Fields(value)
		}
	}
	return m
}

// mark is that of this configuration.
func (s *source) mark() mark {
	m := mark{service: s.relay.cfg.Service, routes: map[string][]string{}}
	for _, d := range s.patterns {
		name := d.route.cfg.Name
		m.routes[name] = append(m.routes[name], d.pattern)
	}
	return m
}

// join has the routes and subjects of both.
func (m mark) join(o mark) mark {
	joined := mark{m.service, m.adopted, maps.Clone(m.routes)}
	for name, patterns := range o.routes {
		joined.routes[name] = reduce(slices.Concat(m.routes[name], patterns))
	}
	return joined
}

func (m mark) patterns() []string {
	return reduce(slices.Concat(slices.Collect(maps.Values(m.routes))...))
}

// over is metadata with this mark in the place of the one that it has.
func (m mark) over(metadata map[string]string) map[string]string {
	next := make(map[string]string)
	for name, value := range metadata {
		if name != markService && name != markAdopted && !strings.HasPrefix(name, markRoute) {
			next[name] = value
		}
	}
	next[markService] = m.service
	if m.adopted != "" {
		next[markAdopted] = m.adopted
	}
	for name, patterns := range m.routes {
		next[markRoute+name] = strings.Join(reduce(patterns), " ")
	}
	return next
}

// reduce is the patterns in order, without those that another one covers.
func reduce(patterns []string) (reduced []string) {
	for _, p := range patterns {
		covered := slices.ContainsFunc(patterns, func(o string) bool { return o != p && subject.Covers(o, p) })
		if !covered && !slices.Contains(reduced, p) {
			reduced = append(reduced, p)
		}
	}
	slices.Sort(reduced)
	return reduced
}
