package generations

import (
	"fmt"

	"github.com/relaymq/relay/internal/control"
)

// Status is that of the partitions. Of the newest generation, this instance has those that are here, and nobody has those of nobody.
func (r *Route) Status(here, nobody []int) *control.PartitionsStatus {
	newest := r.Newest()
	s := &control.PartitionsStatus{Count: newest.Count, Generation: newest.Number, Stream: newest.Name(), Here: here, Nobody: nobody}
	for _, former := range r.Streams[:len(r.Streams)-1] {
		s.HandingOver = append(s.HandingOver, former.Number)
	}
	if n := r.Behind(); n >= 0 {
		s.Behind = new(uint64(n))
	}
	return s
}

// Together is the status of the route, from those of its parts and of its partitions. So many keys are listed at most.
func (r *Route) Together(parts []control.RouteStatus, keys int, partitions *control.PartitionsStatus) control.RouteStatus {
	s := control.Together(parts, keys)
	s.Partitions, s.Stream, s.Holder = partitions, r.Newest().Layout.Stream, nil
	if s.State == control.StateStandby && s.Why != "" {
		s.Why = "other instances have its partitions"
		if len(partitions.Nobody) > 0 {
			s.Why = "no instance has its partitions yet"
		}
	}
	if len(partitions.HandingOver) > 0 && (s.State == control.StateFlowing || s.State == control.StateStandby) {
		s.Why = fmt.Sprintf("the route changes to %d partitions; messages that wait in the former ones are handed over first", partitions.Count)
	}
	return s
}
