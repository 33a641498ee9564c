package provision

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

// Mark is what a durable's metadata says of whom it is for.
type Mark struct {
	Service string
	Adopted string              // when --adopt set the routes; empty: never
	Routes  map[string][]string // the subjects of each
}

// MarkOf reads it; that of another program's durable has no service.
func MarkOf(metadata map[string]string) Mark {
	m := Mark{Service: metadata[markService], Adopted: metadata[markAdopted], Routes: map[string][]string{}}
	for name, value := range metadata {
		if route, ok := strings.CutPrefix(name, markRoute); ok {
			m.Routes[route] = strings.Fields(value)
		}
	}
	return m
}

// join has the routes and subjects of both.
func (m Mark) join(o Mark) Mark {
	joined := Mark{m.Service, m.Adopted, maps.Clone(m.Routes)}
	for name, patterns := range o.Routes {
		joined.Routes[name] = reduce(slices.Concat(m.Routes[name], patterns))
	}
	return joined
}

// Patterns are the subjects of all routes, without those that another one covers.
func (m Mark) Patterns() []string {
	return reduce(slices.Concat(slices.Collect(maps.Values(m.Routes))...))
}

// over is metadata with this mark in the place of the one that it has.
func (m Mark) over(metadata map[string]string) map[string]string {
	next := make(map[string]string)
	for name, value := range metadata {
		if name != markService && name != markAdopted && !strings.HasPrefix(name, markRoute) {
			next[name] = value
		}
	}
	next[markService] = m.Service
	if m.Adopted != "" {
		next[markAdopted] = m.Adopted
	}
	for name, patterns := range m.Routes {
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
