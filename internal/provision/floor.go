package provision

import (
	"fmt"
	"maps"
)

const markFloor = "relay.floor" // as String writes it

// Floor is how far a durable was acknowledged. It is noted where an accident of the durable does not reach: in the metadata of
// another one.
type Floor struct {
	Durable string
	Stream  int64 // when the stream was made, in Unix nanoseconds: the sequences of another one mean nothing
	Seq     uint64
	At      int64 // in Unix seconds
}

func (f Floor) String() string { return fmt.Sprintf("%s %d %d %d", f.Durable, f.Stream, f.Seq, f.At) }

// Same tells whether both say the same, whenever that was.
func (f Floor) Same(o Floor) bool {
	f.At = o.At
	return f == o
}

// FloorOf reads what is noted there.
func FloorOf(metadata map[string]string) (f Floor, ok bool) {
	n, _ := fmt.Sscan(metadata[markFloor], &f.Durable, &f.Stream, &f.Seq, &f.At)
	return f, n == 4
}

// Over is metadata with this floor in the place of the one that it has.
func (f Floor) Over(metadata map[string]string) map[string]string {
	next := maps.Clone(metadata)
	if next == nil {
		next = make(map[string]string)
	}
	next[markFloor] = f.String()
	return next
}
