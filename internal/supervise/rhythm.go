package supervise

// rhythm is how often successes come among what does not succeed: a share of bad messages that has been there all along is no
// sign that what all messages depend on is down.
type rhythm struct {
	// Completions since the last success, and how many there usually are from one success to the next. 0: none
	// succeeded yet.
	since, spacing int
	streak         int // successes in a row
}

const (
	// overdueFactor is how many usual distances without a success are an outage: chance makes one of eight once in 3,000.
	overdueFactor = 8
	// maxOverdue bounds it, so that an outage after an attack costs no more attempts than this. It bounds the spacing, not the count:
	// dead_trip may ask for more.
	maxOverdue = 5000
)

func (r *rhythm) failed() { r.since++ }

func (r *rhythm) succeeded() {
	distance := min(r.since, maxOverdue) + 1
	if r.since = 0; distance > 1 {
		r.streak = 0
	}
	r.streak++
	switch {
	case distance >= r.spacing:
		r.spacing = distance
	case r.streak > 4:
		// Rare among failures, and the rule after an outage: the next one is to be noticed as soon.
		r.spacing -= r.spacing / 2
	default:
		r.spacing -= (r.spacing - distance + 63) / 64
	}
}

// overdue tells whether no success has come for more completions than chance explains, or for so many.
func (r *rhythm) overdue(most int) bool {
	return r.since >= min(overdueFactor*max(0, r.spacing-1), most)
}
