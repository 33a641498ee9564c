package route

import (
	"fmt"
	"log/slog"

	"github.com/relaymq/relay/internal/partition"
)

// A route with partitions is one route to everybody outside of this package, and here one for each partition: an ordered route that one instance at a
// time has, on the durable of the partition in a stream of relay's own (package partition). Several instances share them, and each key is in one of them. The
// parts begin and end by changes, as other routes do.
//
// When the number of partitions, the key or the subjects change, there is a new generation (package generations). The parts of former ones then hand over
// what they still have, in the order of its keys, and end.

// isCopy tells whether the handler is that of another route, which is checked there.
func (r Spec) IsCopy() bool { return r.Part.IsCopy() }

// handsOver tells whether the route hands its messages over to another generation of partitions.
func (rt *Route) HandsOver() bool { return rt.Spec.Part.HandsOver() }

// name is what the route is called outside of this package.
func (rt *Route) Name() string { return rt.Spec.calledName() }

func (r Spec) calledName() string {
	if r.Part != nil {
		return r.Part.Route
	}
	return r.Name
}

func (r Spec) logger(log *slog.Logger) *slog.Logger {
	if p := r.Part; p != nil {
		return log.With("route", p.Route, "partition", p.Number, "generation", p.Of.Number)
	}
	return log.With("route", r.Name)
}

// called names the route in a sentence.
func (r Spec) Called() string {
	if p := r.Part; p != nil {
		return fmt.Sprintf("%s, partition %d of %d,", p.Route, p.Number, p.Of.Count)
	}
	return r.Name
}

// originStream is the user's stream that the route reads.
func (r Spec) OriginStream(p *Place) string {
	if r.Part != nil {
		return r.Part.Stream
	}
	return p.Main.Stream
}

// layout is how the route is to be divided, but for the stream, which is found when it is.
func (r Spec) Layout() partition.Layout {
	return partition.Layout{Count: r.Partitions, Key: r.Key, Subjects: r.Subjects, Durable: r.Durable}
}
