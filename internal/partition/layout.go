// Package partition divides the messages of a stream by their keys, so that several instances can handle them in order: a stream of relay's own, a
// generation, sources the user's stream, and the server puts the number of the partition into the subject of each copy. A route that gets another
// number of partitions gets another generation.
//
// The subject of a copy is
//
//	<service>.part.<route>.<generation>.<partition>.<how it came>.<its own subject>
package partition

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/relaymq/relay/internal/subject"
)

const (
	// Max is how many partitions a route may have. Each is a consumer, which costs its servers some CPU time even when it is idle.
	Max = 256
	// MaxRoute is how long the name of a route with partitions may be: the routes of its partitions have longer ones.
	MaxRoute = 48
)

// How a copy came to its stream.
const (
	copied = "c" // the server sourced it
	moved  = "m" // relay put it there: it was replayed, or comes from a former generation
)

// Layout is how a route is divided. Two layouts that are equal put each subject into the same partition.
type Layout struct {
	Count    int      `json:"partitions"`
	Key      string   `json:"key"`
	Subjects []string `json:"subjects"`
	Stream   string   `json:"stream"`  // of the user
	Durable  string   `json:"durable"` // those of the partitions begin with it
}

// Equal tells whether both put the same messages into the same partitions.
func (l Layout) Equal(o Layout) bool {
	return l.Count == o.Count && l.Key == o.Key && l.Stream == o.Stream && l.Durable == o.Durable && slices.Equal(l.Subjects, o.Subjects)
}

// Validate says why the server could not divide messages like that. Each fault begins with the config name of its field.
func (l Layout) Validate() error {
	if l.Count < 2 || l.Count > Max {
		return fmt.Errorf("partitions: must be 2 to %d (got %d)", Max, l.Count)
	}
	tokens, err := l.tokens()
	if err != nil {
		return err
	}
	var errs []error
	for _, pattern := range l.Subjects {
		parts := strings.Split(pattern, ".")
		for _, t := range tokens {
			if t > len(parts) || parts[t-1] != "*" {
				errs = append(errs, fmt.Errorf("partitions: the server divides messages by wildcards, but {%d} of key %q is not a * in subject %q: name tokens that are * in all subjects of the route, or use key: subject", t, l.Key, pattern))
			}
		}
	}
	return errors.Join(errs...)
}

// tokens are those of the subject that decide; none: all of it does.
func (l Layout) tokens() ([]int, error) {
	switch l.Key {
	case "subject":
		return nil, nil
	case "route":
		return nil, errors.New("partitions: with key: route all messages have one key, so only one partition would get them; use another key, or remove partitions")
	}
	t, err := subject.ParseTemplate(l.Key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	tokens := t.Tokens()
	if slices.Contains(tokens, -1) {
		return nil, nil
	}
	return tokens, nil
}

// Of is the partition of a message by its own subject: the same as that of its copy.
func (l Layout) Of(literal string) int {
	h := fnv.New32a()
	tokens, err := l.tokens()
	parts := strings.Split(literal, ".")
	if err != nil || len(tokens) == 0 || slices.Max(tokens) > len(parts) {
		_, _ = h.Write([]byte(literal))
	} else {
		for _, t := range tokens {
			_, _ = h.Write([]byte(parts[t-1]))
		}
	}
	return int(h.Sum32() % uint32(l.Count))
}

// Transform is what the server makes of a subject of the user's stream.
type Transform struct{ Source, Destination string }

// Generation is one way to divide the messages of a route, with the stream that holds them.
type Generation struct {
	Service, Route string
	Number         int
	Layout
}

// Name is that of its stream.
func (g Generation) Name() string {
	return fmt.Sprintf("%s_%s_G%d", strings.ToUpper(g.Service), strings.ToUpper(g.Route), g.Number)
}

// Subjects is the pattern of the copies of all generations of a route.
func Subjects(service, route string) string { return service + ".part." + route + ".>" }

func (g Generation) prefix() string {
	return g.Service + ".part." + g.Route + "." + strconv.Itoa(g.Number) + "."
}

// Filter is the pattern of all copies of the generation.
func (g Generation) Filter() string { return g.prefix() + ">" }

// end is the subject of the mark behind the last message. A stream takes it only once it is being cut.
func (g Generation) end() string {
	return g.Service + ".part." + g.Route + ".end." + strconv.Itoa(g.Number)
}

// Part is the pattern of the copies of one partition.
func (g Generation) Part(n int) string { return g.prefix() + strconv.Itoa(n) + ".>" }

// Copied is the pattern of the copies that the server sourced.
func (g Generation) Copied() string { return g.prefix() + "*." + copied + ".>" }

// Moved is the subject on which relay puts a message with that subject of its own.
func (g Generation) Moved(literal string) string {
	return g.prefix() + strconv.Itoa(g.Of(literal)) + "." + moved + "." + literal
}

// DurableOf is the name of the consumer of a partition.
func (g Generation) DurableOf(n int) string { return g.Durable + "-" + strconv.Itoa(n) }

// RouteOf is the name of the route that relay runs for a partition.
func (g Generation) RouteOf(n int) string { return fmt.Sprintf("%s-g%d-%d", g.Route, g.Number, n) }

// Transforms are what the source of its stream has.
func (g Generation) Transforms() (list []Transform) {
	tokens, _ := g.tokens() // validated
	for _, pattern := range g.Layout.Subjects {
		var to, wildcards = []string(nil), 0
		at := make(map[int]int) // the number of the wildcard at a token
		for i, t := range strings.Split(pattern, ".") {
			if t == "*" {
				wildcards++
				at[i+1] = wildcards
				t = fmt.Sprintf("{{wildcard(%d)}}", wildcards)
			}
			to = append(to, t)
		}
		by := strconv.Itoa(g.Count)
		for _, t := range tokens {
			by += "," + strconv.Itoa(at[t])
		}
		list = append(list, Transform{pattern, fmt.Sprintf("%s{{partition(%s)}}.%s.%s", g.prefix(), by, copied, strings.Join(to, "."))})
	}
	return list
}

// Own is a message's own subject, from that of its copy.
func Own(stored string) (literal string, wasMoved, ok bool) {
	rest := stored
	for range 5 { // service, part, route, generation, partition
		if _, rest, ok = strings.Cut(rest, "."); !ok {
			return "", false, false
		}
	}
	how, literal, ok := strings.Cut(rest, ".")
	return literal, how == moved, ok && (how == copied || how == moved)
}

// SourceHeader is what the server says of where a copy comes from.
const SourceHeader = "Nats-Stream-Source"

// Source is the sequence of a message in the stream that it was sourced from.
func Source(header string) (sequence uint64, ok bool) {
	_, rest, _ := strings.Cut(header, " ")
	number, _, _ := strings.Cut(rest, " ")
	sequence, err := strconv.ParseUint(number, 10, 64)
	return sequence, err == nil && sequence > 0
}
