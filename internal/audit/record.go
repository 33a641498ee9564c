package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// format is that of the records which this version writes.
const format = 1

// ErrNewer says that a newer version of relay wrote the record. It is left alone.
var ErrNewer = errors.New("the ledger was written by a newer version of relay")

// Counts are what became of the messages of a route.
type Counts struct {
	Received  uint64 `json:"received"`  // delivered for the first time
	Replayed  uint64 `json:"replayed"`  // came back from the dead letters
	Done      uint64 `json:"done"`      // handled
	Fallback  uint64 `json:"fallback"`  // handled by the route's fallback
	Dead      uint64 `json:"dead"`      // dead-lettered
	Dropped   uint64 `json:"dropped"`   // nobody wants them, as their handler said
	Expired   uint64 `json:"expired"`   // their deadline was over
	Forgotten uint64 `json:"forgotten"` // their callers did not want them any more
	// What operators did with messages that waited in the retry stream: Discarded were made dead letters, MovedAway given to another route, and
	// MovedHere to this one. Records of operators say so: no ledger has it.
	Discarded uint64 `json:"discarded,omitempty"`
	MovedAway uint64 `json:"moved_away,omitempty"`
	MovedHere uint64 `json:"moved_here,omitempty"`
}

// In is what came.
func (c Counts) In() uint64 { return c.Received + c.Replayed + c.MovedHere }

// Ended is what is through.
func (c Counts) Ended() uint64 {
	return c.Done + c.Fallback + c.Dead + c.Dropped + c.Expired + c.Forgotten + c.Discarded + c.MovedAway
}

// each calls f with every count of both.
func (c *Counts) each(o Counts, f func(have *uint64, other uint64)) {
	f(&c.Received, o.Received)
	f(&c.Replayed, o.Replayed)
	f(&c.Done, o.Done)
	f(&c.Fallback, o.Fallback)
	f(&c.Dead, o.Dead)
	f(&c.Dropped, o.Dropped)
	f(&c.Expired, o.Expired)
	f(&c.Forgotten, o.Forgotten)
	f(&c.Discarded, o.Discarded)
	f(&c.MovedAway, o.MovedAway)
	f(&c.MovedHere, o.MovedHere)
}

// Add is the sum of both.
func (c Counts) Add(o Counts) Counts {
	c.each(o, func(have *uint64, other uint64) { *have += other })
	return c
}

// Sub is what was counted since o.
func (c Counts) Sub(o Counts) Counts {
	c.each(o, func(have *uint64, other uint64) { *have -= other })
	return c
}

// Deliveries are the counts of one durable's deliveries.
type Deliveries struct {
	Arrived uint64 `json:"arrived"` // all that reached an instance
	First   uint64 `json:"first"`   // of them those of messages that were never delivered before
	Naked   uint64 `json:"naked"`   // NAKs that were sent, each of which asks for one more delivery
}

// Add is the sum of both.
func (d Deliveries) Add(o Deliveries) Deliveries {
	return Deliveries{d.Arrived + o.Arrived, d.First + o.First, d.Naked + o.Naked}
}

// Sub is what was counted since o.
func (d Deliveries) Sub(o Deliveries) Deliveries {
	return Deliveries{d.Arrived - o.Arrived, d.First - o.First, d.Naked - o.Naked}
}

// Start is what the server said of a durable before the first delivery that was counted.
type Start struct {
	Created   time.Time `json:"created"`   // when the durable was made
	Delivered uint64    `json:"delivered"` // the number of its last delivery
}

// Durable is what the record has of one.
type Durable struct {
	Start
	Deliveries
}

// Instance is what an instance wrote last.
type Instance struct {
	Name     string    `json:"name"`
	Addition uint64    `json:"addition"` // its number, counted from 1
	At       time.Time `json:"at"`
	// Hand is how many messages it had in hand then.
	Hand int `json:"hand"`
}

// Record is the ledger of a durable with its routes.
type Record struct {
	Format  int    `json:"format"`
	Stream  string `json:"stream"`
	Durable string `json:"durable"`
	// Since is when the counting began. Whole says that this was before the first delivery.
	Since time.Time `json:"since"`
	Whole bool      `json:"whole"`
	// Carried messages waited already when the counting began.
	Carried uint64            `json:"carried"`
	Routes  map[string]Counts `json:"routes"`
	// Durables are the main one and those of its routes on the retry stream, by "<stream>/<durable>".
	Durables map[string]Durable `json:"durables"`
	// Instances that run, or ended without a word, by a name of the process. One that ended cleanly is not among them.
	Instances map[string]Instance `json:"instances"`
	// Killed is what instances had in hand that ended without a word and are forgotten.
	Killed uint64 `json:"killed,omitempty"`
	// Unsure is how many messages may be stored twice: no answer came when they were parked.
	Unsure uint64 `json:"unsure,omitempty"`
	// Moved is how many messages may be counted once too often, or not at all: they moved while the counting began.
	Moved uint64 `json:"moved,omitempty"`

	revision uint64
}

func (r *Record) main() string { return Name(r.Stream, r.Durable) }

// Name is how the record calls a durable.
func Name(stream, durable string) string { return stream + "/" + durable }

// Total is the sum over the routes.
func (r *Record) Total() (sum Counts) {
	for _, c := range r.Routes {
		sum = sum.Add(c)
	}
	return sum
}

func parse(b []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("not a ledger: %w", err)
	}
	if r.Format > format {
		return nil, ErrNewer
	}
	return r, nil
}

// Addition is what an instance counted since its last one.
type Addition struct {
	Routes   map[string]Counts
	Durables map[string]Durable // with the Start that the instance saw when it began
	Unsure   uint64
	Hand     int
	// Opening is for the instance that begins the ledger.
	Opening Opening
}

// Opening is what waited when an instance began, and when that was.
type Opening struct {
	At      time.Time
	Carried uint64
	// Moved is how many messages were delivered, settled or parked while the instance looked.
	Moved uint64
}

// forgetAfter is how long an instance that says nothing is remembered by its name.
const forgetAfter = time.Hour

// begin is the record of a durable of which there is none yet.
func begin(stream, durable string, a Addition) *Record {
	r := &Record{Stream: stream, Durable: durable, Since: a.Opening.At, Carried: a.Opening.Carried, Moved: a.Opening.Moved,
		Routes: map[string]Counts{}, Durables: map[string]Durable{}, Instances: map[string]Instance{}}
	r.Whole = a.Durables[r.main()].Delivered == 0
	return r
}

// Began tells whether the record is of this durable, and was begun by one who looked no later; or it is of a later durable, so that
// nothing of this one is added any more.
func (r *Record) Began(s Start) bool {
	have := r.Durables[r.main()]
	return have.Created.Equal(s.Created) && have.Delivered <= s.Delivered || have.Created.After(s.Created)
}

// age is above 0 when the durable of the addition was made after that of the record, and below 0 when before it.
func (r *Record) age(a Addition) int {
	return a.Durables[r.main()].Created.Compare(r.Durables[r.main()].Created)
}

// add makes an addition of the process, which calls itself name. It returns false when the record has it already.
func (r *Record) add(process, name string, number uint64, a Addition, now time.Time) bool {
	if r.Instances[process].Addition >= number {
		return false
	}
	r.Format = format
	for key, d := range a.Durables {
		have, known := r.Durables[key]
		switch {
		case !known || !have.Created.Equal(d.Created):
			have = Durable{Start: d.Start} // one on the retry stream may be made anew
		case key == r.main() && d.Delivered < have.Delivered:
			// Two began at a time, and the record is of the one that looked later.
			r.Since, r.Carried, r.Moved, r.Whole = a.Opening.At, a.Opening.Carried, a.Opening.Moved, d.Delivered == 0
			have.Start = d.Start
		case d.Delivered < have.Delivered:
			have.Start = d.Start
		}
		have.Deliveries = have.Deliveries.Add(d.Deliveries)
		r.Durables[key] = have
	}
	for route, c := range a.Routes {
		r.Routes[route] = r.Routes[route].Add(c)
	}
	r.Unsure += a.Unsure
	r.Instances[process] = Instance{Name: name, Addition: number, At: now.UTC(), Hand: a.Hand}
	for id, i := range r.Instances {
		if now.Sub(i.At) > forgetAfter {
			r.Killed += uint64(max(0, i.Hand))
			delete(r.Instances, id)
		}
	}
	return true
}
