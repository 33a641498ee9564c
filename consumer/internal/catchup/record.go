package catchup

import (
	"slices"
	"time"

	"github.com/relaymq/relay/internal/subject"
)

// format of records. An instance that meets a greater one leaves it alone.
const format = 1

// Record is what is to be handed over of one durable.
type Record struct {
	Format int `json:"format"`
	// Created is when the durable was made: of another one of its name nothing is known.
	Created time.Time `json:"created"`
	Ranges  []Range   `json:"ranges"`
	// Passed is the last sequence of ranges that are over and that the durable is not known to have got to: up to there it may have passed what it lets
	// through now.
	Passed uint64 `json:"passed,omitempty"`
	// Changing has the instance that changes the durable, and Handing the one that hands over: one at a time.
	Changing Claim `json:"changing,omitzero"`
	Handing  Claim `json:"handing,omitzero"`
}

// Claim is held by an instance until a time, unless it says so again.
type Claim struct {
	By    string    `json:"by"`
	Until time.Time `json:"until"`
}

// Take takes the claim for a while. It returns false when another instance has it.
func (c *Claim) Take(by string, now time.Time, lasts time.Duration) bool {
	if c.By != "" && c.By != by && now.Before(c.Until) {
		return false
	}
	*c = Claim{by, now.Add(lasts)}
	return true
}

// Range are messages of the stream that the durable has passed.
type Range struct {
	Pattern string   `json:"subjects"`
	Except  []string `json:"except,omitempty"` // that the durable has had
	// Had is the sequence up to which the durable had them before: these are its own if they come again.
	Had uint64 `json:"had,omitempty"`
	// From is the first sequence, and Since the time when the first one was stored at the earliest, as the route's start says. Those before it, of
	// which Until is the last, are nobody's.
	From  uint64    `json:"from,omitempty"`
	Since time.Time `json:"since,omitzero"`
	Until uint64    `json:"until,omitempty"`
	// To is the last sequence; zero: it is not known yet.
	To uint64 `json:"to,omitempty"`
	// Done is the sequence up to which all are handed over, and Handed how many that were.
	Done   uint64 `json:"done,omitempty"`
	Handed uint64 `json:"handed,omitempty"`
	// Left ranges were taken away from the durable, which had them up to Had: they begin there if they come back.
	Left bool `json:"left,omitempty"`
	// Held is how many the stream held when the range began.
	Held  uint64    `json:"held"`
	Began time.Time `json:"began"`
}

// Wants tells whether messages on this subject belong to the range.
func (g *Range) Wants(literal string) bool {
	return subject.Matches(g.Pattern, literal) && !slices.ContainsFunc(g.Except, func(p string) bool { return subject.Matches(p, literal) })
}

// IsDone tells whether all of it is handed over.
func (g *Range) IsDone() bool { return g.Left || g.To > 0 && g.Next() > g.To }

// Next is the sequence from which on there may be more.
func (g *Range) Next() uint64 { return max(g.Had+1, g.From, g.Done+1) }

// Place says what becomes of a message that the durable delivers.
type Place int

// The places there are.
const (
	Outside Place = iota // it is the durable's
	Waits                // it is to be handed over
	Passed               // it was handed over, or is from before the route's start
)

// Place of a message. Of a range whose end is not known yet nothing is the durable's.
func (r *Record) Place(sequence uint64, stored time.Time, literal string) Place {
	place := Outside
	if r == nil {
		return place
	}
	for i := range r.Ranges {
		g := &r.Ranges[i]
		switch {
		case g.Left || sequence <= g.Had || !g.Wants(literal):
		case sequence < g.From || stored.Before(g.Since):
			place = Passed
		case g.To > 0 && sequence > g.To:
		case g.To == 0 || sequence > g.Done:
			return Waits
		default:
			place = Passed
		}
	}
	return place
}

// Begin adds ranges. One that is there already for the same subjects goes on where it is: somebody took them away from the durable meanwhile, and it
// may have passed more.
func (r *Record) Begin(ranges ...Range) {
	for _, g := range ranges {
		for _, h := range r.Ranges {
			if h.Left && subject.Covers(h.Pattern, g.Pattern) {
				g.Had = max(g.Had, h.Had)
			}
		}
		if i := slices.IndexFunc(r.Ranges, func(h Range) bool { return h.Pattern == g.Pattern }); i < 0 {
			r.Ranges = append(r.Ranges, g)
		} else if h := &r.Ranges[i]; h.Left {
			*h = g
		} else {
			h.To = 0
		}
	}
}

// Leave notes that a durable is not for a pattern any more, of which it has had all up to a sequence.
func (r *Record) Leave(pattern string, had uint64) {
	r.Ranges = slices.DeleteFunc(r.Ranges, func(g Range) bool { return g.Left && subject.Covers(pattern, g.Pattern) })
	if i := slices.IndexFunc(r.Ranges, func(g Range) bool { return g.Pattern == pattern }); i >= 0 {
		if g := &r.Ranges[i]; !g.IsDone() {
			had = g.Next() - 1 // what was not handed over has to be when it comes back
		}
		r.Ranges = slices.Delete(r.Ranges, i, i+1)
	}
	r.Ranges = append(r.Ranges, Range{Pattern: pattern, Left: true, Had: had})
}

// Open are the ranges of which the end is not known.
func (r *Record) Open() (list []*Range) {
	for i := range r.Ranges {
		if g := &r.Ranges[i]; g.To == 0 && !g.Left {
			list = append(list, g)
		}
	}
	return list
}

// Drop removes the ranges whose end is not known: the durable was never widened for them.
func (r *Record) Drop() {
	r.Ranges = slices.DeleteFunc(r.Ranges, func(g Range) bool { return g.To == 0 && !g.Left })
}

// Over removes the ranges that are handed over. The durable has delivered up to a sequence. It returns nil when nothing is left to be known.
func (r *Record) Over(delivered uint64) *Record {
	r.Passed = r.MayHavePassed()
	if r.Passed <= delivered {
		r.Passed = 0
	}
	r.Ranges = slices.DeleteFunc(r.Ranges, func(g Range) bool { return g.IsDone() && !g.Left })
	return r.OrNil()
}

// MayHavePassed is the last sequence up to which the durable may have passed messages that it lets through now.
func (r *Record) MayHavePassed() uint64 {
	if r == nil {
		return 0
	}
	last := r.Passed
	for _, g := range r.Ranges {
		if !g.Left {
			last = max(last, g.To)
		}
	}
	return last
}

// OrNil is nil when the record tells nothing.
func (r *Record) OrNil() *Record {
	if len(r.Ranges) == 0 && r.Passed == 0 && r.Changing == (Claim{}) {
		return nil
	}
	return r
}

// IsDone tells whether all is handed over.
func (r *Record) IsDone() bool {
	return !slices.ContainsFunc(r.Ranges, func(g Range) bool { return !g.IsDone() })
}

// IsOver tells whether nothing is to be handed over any more.
func (r *Record) IsOver() bool {
	return r == nil || !slices.ContainsFunc(r.Ranges, func(g Range) bool { return !g.Left })
}

// Last is the greatest sequence that a range is about.
func (r *Record) Last() (last uint64) {
	for _, g := range r.Ranges {
		last = max(last, g.To, g.Until)
	}
	return last
}

// Gap are the patterns of those wanted of which a durable with these filters, that was for the patterns known, delivers not everything. A durable
// without filters delivers all.
func Gap(filters, known, wanted []string) (missing []string) {
	if len(filters) == 0 {
		return nil
	}
	had := slices.Concat(filters, known)
	for _, p := range wanted {
		if !slices.ContainsFunc(had, func(h string) bool { return subject.Covers(h, p) }) && !slices.Contains(missing, p) {
			missing = append(missing, p)
		}
	}
	return missing
}

// Except are those of the patterns had that overlap one.
func Except(had []string, pattern string) (list []string) {
	for _, h := range had {
		if subject.Overlaps(h, pattern) && !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	return list
}

// Bound says up to which sequence a durable with these filters may have passed the ranges whose end was not known.
func (r *Record) Bound(filters []string, to uint64) {
	r.Ranges = slices.DeleteFunc(r.Ranges, func(g Range) bool {
		return !g.Left && g.To == 0 && len(Gap(filters, nil, []string{g.Pattern})) == 0 && to < g.Next() && g.Until == 0
	})
	for _, g := range r.Open() {
		if len(Gap(filters, nil, []string{g.Pattern})) == 0 {
			g.To = max(to, 1) // when it is 0, the first message is another route's
		}
	}
}

// Progress notes that n messages more are handed over, and all up to a sequence.
func (r *Record) Progress(pattern string, done uint64, n int) {
	for i := range r.Ranges {
		if g := &r.Ranges[i]; g.Pattern == pattern && !g.Left {
			g.Done = max(g.Done, done)
			g.Handed += uint64(n)
		}
	}
}
