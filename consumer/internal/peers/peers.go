// Package peers is what the instances of a service tell each other with their sessions in the fleet, and what follows from that: who would handle a
// route, who works on partitions, how these are divided.
package peers

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"fmt"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
)

// State is what an instance tells the others with its session.
type State struct {
	Generation int    `json:"generation,omitempty"` // of its configuration
	Config     string `json:"config,omitempty"`     // hash
	Draining   bool   `json:"draining,omitempty"`
	// Routes of one instance at a time that this one would take.
	Routes []string `json:"routes,omitempty"`
	// Durables of them, by route.
	Durables map[string]string `json:"durables,omitempty"`
	// Generations are those that it works on, of routes with partitions.
	Generations map[string]Generations `json:"generations,omitempty"`
}

// Generations are those of a route that an instance works on.
type Generations struct {
	Oldest int `json:"oldest"`
	Newest int `json:"newest"`
}

// stateOf is what a member says of itself. One that cannot be read says nothing.
func stateOf(m fleet.Member) (s State) {
	_ = json.Unmarshal(m.State, &s)
	return s
}

// Has tells whether it would take the route.
func (s State) Has(route string) bool { return slices.Contains(s.Routes, route) }

// Reads tells whether it would take the route with this durable. An earlier version does not say with which.
func (s State) Reads(route, durable string) bool {
	of := s.Durables[route]
	return s.Has(route) && (of == "" || of == durable)
}

// Here are the instances that live, with this one, and what they say. There are none without a fleet.
func Here(f *fleet.Fleet) iter.Seq2[fleet.Member, State] {
	return func(yield func(fleet.Member, State) bool) {
		if f == nil {
			return
		}
		members, _ := f.Members()
		for _, m := range members {
			if m.Gone.IsZero() && !yield(m, stateOf(m)) {
				return
			}
		}
	}
}

// anyIs tells whether that is so of an instance that lives.
func anyIs(f *fleet.Fleet, is func(fleet.Member, State) bool) bool {
	for m, s := range Here(f) {
		if is(m, s) {
			return true
		}
	}
	return false
}

// Gone are the instances that have ended or do not answer any more, for the status.
func Gone(f *fleet.Fleet) (list []control.MemberStatus) {
	if f == nil {
		return nil
	}
	members, _ := f.Members()
	for _, m := range members {
		if !m.Gone.IsZero() && len(list) < control.MaxTroubles {
			list = append(list, control.MemberStatus{
				Instance: control.Cut(m.Instance, control.MaxKey), Version: control.Cut(m.Version, control.MaxKey), Gone: m.Gone.UTC(), Clean: stateOf(m).Draining,
			})
		}
	}
	return list
}

// Held tells whether an instance has the claim of a durable.
func Held(f *fleet.Fleet, stream, durable string) bool {
	if f == nil {
		return false
	}
	_, held := f.Holder(Resource(stream, durable))
	return held
}

// StandsBy tells whether another instance than that would take a route of which one instance at a time handles messages, with this durable.
func StandsBy(f *fleet.Fleet, instance, route, durable string) bool {
	return anyIs(f, func(m fleet.Member, s State) bool { return m.Instance != instance && s.Reads(route, durable) })
}

// Uses tells whether an instance has the claim of a durable, or another one than that would take the route with it.
func Uses(f *fleet.Fleet, instance, stream, route, durable string) bool {
	return Held(f, stream, durable) || StandsBy(f, instance, route, durable)
}

// Divides tells whether an instance works on the partitions of a route.
func Divides(f *fleet.Fleet, route string) bool {
	return anyIs(f, func(_ fleet.Member, s State) bool {
		_, told := s.Generations[route]
		return told
	})
}

// WorkBefore tells whether an instance may have partitions of a generation before that one. Without a fleet that is not known.
func WorkBefore(f *fleet.Fleet, route string, generation int) bool {
	return f == nil || anyIs(f, func(_ fleet.Member, s State) bool {
		g, told := s.Generations[route]
		return told && g.Oldest < generation
	})
}

// AreFurther tells whether an instance knows of a newer generation, or that a former one is through.
func AreFurther(f *fleet.Fleet, route string, own Generations) bool {
	return anyIs(f, func(_ fleet.Member, s State) bool {
		g := s.Generations[route]
		return g.Newest > own.Newest || g.Oldest > own.Oldest
	})
}

// Resource is what the fleet calls a durable that one instance at a time pulls from.
func Resource(stream, durable string) string {
	var b strings.Builder
	b.WriteString("route." + durable + ".")
	for _, c := range []byte(stream) {
		if c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}
