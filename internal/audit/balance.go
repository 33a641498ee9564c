package audit

import (
	"fmt"
	"strings"
	"time"
)

// Server is what the server says of the durables of a record, and what waits.
type Server struct {
	// Durables that are there, by "<stream>/<durable>".
	Durables map[string]Counted
	// Parked is what the retry stream has for the routes, waiting or due.
	Parked uint64
}

// Counted is a durable as the server counts.
type Counted struct {
	Created     time.Time
	Delivered   uint64 // the number of its last delivery
	Outstanding int    // delivered and not settled
	Pending     uint64 // not delivered yet
}

// same tells whether nothing was delivered, settled, parked or published in between.
func (s Server) same(o Server) bool {
	if s.Parked != o.Parked || len(s.Durables) != len(o.Durables) {
		return false
	}
	for key, c := range s.Durables {
		if c != o.Durables[key] {
			return false
		}
	}
	return true
}

// What a balance says.
const (
	Balanced    = "balanced"    // every message that came is through, or waits
	Explained   = "explained"   // there is a difference, and what was counted of crashes is as much
	Moving      = "moving"      // messages come and go, so that it cannot be told to the message
	Lost        = "lost"        // balanced, but dead letters are not there any more
	Unexplained = "unexplained" // there is a difference that nothing explains
	Unknown     = "unknown"     // the durable is not there, or not the one of the record
)

// Balance is a record beside what the server says.
type Balance struct {
	Stream  string            `json:"stream"`
	Durable string            `json:"durable"`
	Since   time.Time         `json:"since"`
	Whole   bool              `json:"whole"` // since before the first delivery
	Routes  map[string]Counts `json:"routes"`
	Total   Counts            `json:"total"`
	Carried uint64            `json:"carried"`
	// What waits, as the server says.
	Outstanding int    `json:"outstanding"`
	Parked      uint64 `json:"parked"`
	// NotDelivered messages have not come yet, and are not in the balance.
	NotDelivered uint64 `json:"not_delivered"`
	// Difference is what came less what is through and what waits: above 0 messages are missing, below 0 some ended twice.
	Difference int64 `json:"difference"`
	// Uncounted deliveries of the server reached no instance, or one that ended without writing it down. Below 0 the server
	// itself went back.
	Uncounted int64 `json:"uncounted_deliveries"`
	// Killed is what instances had in hand that ended without a word.
	Killed uint64 `json:"killed_in_hand"`
	// Twice is how many messages may have ended twice: they came again without a NAK that asked for it.
	Twice uint64 `json:"may_have_ended_twice"`
	// Bound is how large a difference these explain.
	Bound uint64 `json:"bound"`
	// DeadLetters are those of the service, of all durables. Nil: that is not known.
	DeadLetters *DeadLetters `json:"dead_letters,omitempty"`
	Verdict     string       `json:"verdict"`
	Text        string       `json:"text"`

	moved uint64
	// final: nothing moves, and no instance has anything to add.
	final bool
}

// Compare sets a record beside what the server said before and after the record was read. lives tells whether an instance
// of that name runs; nil: that is not known.
func Compare(r *Record, before, after Server, lives func(name string) bool) Balance {
	b := Balance{
		Stream: r.Stream, Durable: r.Durable, Since: r.Since, Whole: r.Whole, Routes: r.Routes, Total: r.Total(), Carried: r.Carried,
		Parked: after.Parked, Killed: r.Killed,
	}
	there, ok := after.Durables[r.main()]
	if !ok || !there.Created.Equal(r.Durables[r.main()].Created) {
		b.Verdict, b.Text = Unknown, "the durable does not exist, or was created again since then"
		return b
	}
	b.NotDelivered = there.Pending
	undelivered := uint64(0) // of the retry stream: replays among them have not been counted
	came := int64(0)
	for key, d := range r.Durables {
		c, ok := after.Durables[key]
		if !ok || !c.Created.Equal(d.Created) {
			continue
		}
		b.Uncounted += int64(c.Delivered-d.Delivered) - int64(d.Arrived)
		came += int64(d.Arrived) - int64(d.First) - int64(d.Naked) + int64(c.Outstanding)
		if key == r.main() {
			b.Outstanding = c.Outstanding
		} else {
			undelivered += c.Pending
		}
	}
	b.Twice = uint64(max(0, came))
	for _, i := range r.Instances {
		if r.killed(i, lives) {
			b.Killed += uint64(max(0, i.Hand))
		}
	}
	b.Difference = int64(b.Carried+b.Total.In()) - int64(b.Total.Ended()) - int64(b.Outstanding) - int64(b.Parked)
	b.moved = r.Moved
	lost := uint64(max(b.Uncounted, -b.Uncounted)) + r.Moved
	if b.Difference > 0 {
		b.Bound = lost + b.Killed
	} else {
		b.Bound = lost + b.Twice + undelivered + r.Unsure
	}
	quiet := before.same(after)
	b.final = quiet && len(r.Instances) == 0
	if quiet {
		b.judge()
	} else {
		b.judgeMoving()
	}
	return b
}

// quietAfter is for how long a process that has messages in hand may not write before it counts as killed.
const quietAfter = 30 * time.Second

// killed tells whether a process ended without a word: nobody of its name runs, another process of the name wrote later, or it
// was quiet for too long.
func (r *Record) killed(i Instance, lives func(name string) bool) bool {
	if time.Since(i.At) > quietAfter || lives != nil && !lives(i.Name) {
		return true
	}
	for _, o := range r.Instances {
		if o.Name == i.Name && o.At.After(i.At) {
			return true
		}
	}
	return false
}

// judgeMoving is judge while messages come and go.
func (b *Balance) judgeMoving() {
	if b.Difference == 0 {
		b.judge()
		return
	}
	b.Verdict = Moving
	b.Text = fmt.Sprintf("messages come and go: the count of relay and that of the server differ by %d for now; run relay audit again when fewer messages move", b.size())
}

// size is how large the difference is.
func (b *Balance) size() uint64 { return uint64(max(b.Difference, -b.Difference)) }

func (b *Balance) judge() {
	switch size := b.size(); {
	case size == 0:
		b.Verdict, b.Text = Balanced, "every message that came is through or waits"
	case size <= b.Bound:
		b.Verdict, b.Text = Explained, b.what(size)+", which crashes explain: "+b.reasons()
	default:
		b.Verdict, b.Text = Unexplained, fmt.Sprintf("%s; what was counted of crashes explains %d", b.what(size), b.Bound)
		if b.Difference > 0 {
			b.Text += "; check whether limits of the stream, or somebody, removed messages that waited"
		}
	}
}

func (b *Balance) what(size uint64) string {
	if b.Difference > 0 {
		return fmt.Sprintf("no outcome was counted for %d messages, and they do not wait", size)
	}
	return fmt.Sprintf("%d more outcomes were counted than messages came", size)
}

// reasons are the parts of the bound.
func (b *Balance) reasons() string {
	var list []string
	say := func(n uint64, format string) {
		if n > 0 {
			list = append(list, fmt.Sprintf(format, n))
		}
	}
	say(uint64(max(0, b.Uncounted)), "%d deliveries were not counted by any instance")
	say(uint64(max(0, -b.Uncounted)), "the server's count of deliveries went back by %d")
	say(b.moved, "%d messages moved while the counting began")
	if b.Difference > 0 {
		say(b.Killed, "instances that were killed had %d messages in hand")
	} else {
		say(b.Twice, "%d messages may have come twice")
	}
	if len(list) == 0 {
		return "messages that are handed over just now, or were stored twice"
	}
	return strings.Join(list, ", ")
}

// Unexplained is how much of the difference nothing explains.
func (b *Balance) Unexplained() uint64 {
	if b.Verdict != Unexplained {
		return 0
	}
	return uint64(max(b.Difference, -b.Difference)) - b.Bound
}

// DeadLetters is what became of the dead letters of a service since the counting began. What operators replayed or discarded, what relay
// dropped and what went by dlq.max_age is not lost.
type DeadLetters struct {
	Stored  uint64    `json:"stored"`
	Since   time.Time `json:"since"`
	AtLeast uint64    `json:"lost_at_least"`
	AtMost  uint64    `json:"lost_at_most"`
}

// SetDeadLetters has the balance say that dead letters are lost: a message is not through when what relay stored of it is gone. lost is how
// many, in words.
func (b *Balance) SetDeadLetters(d DeadLetters, lost string) {
	b.DeadLetters = &d
	if d.AtLeast == 0 || b.Total.Dead == 0 {
		return
	}
	text := fmt.Sprintf("of the stored dead letters of all durables, %s are missing; neither relay nor its operators took them out, and who did is not known", lost)
	if b.Verdict == Balanced {
		b.Verdict, b.Text = Lost, "every message that came is through or waits, but "+text
		return
	}
	b.Text += "; " + text
}

// SetEdits has a balance that misses messages say what somebody did to the retry stream.
func (b *Balance) SetEdits(edits []string) {
	if b.Difference > 0 && (b.Verdict == Unexplained || b.Verdict == Explained || b.Verdict == Moving) {
		for _, e := range edits {
			b.Text += "; " + e
		}
	}
}
