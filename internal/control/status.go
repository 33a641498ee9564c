// Package control is what instances of relay tell whoever asks them, and what operators have them do: requests over NATS, and their answers. The commands of
// relay send them, and consumer/internal/engine answers.
package control

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/relaymq/relay/internal/orders"
)

// Status is what one instance says of itself.
type Status struct {
	Instance string    `json:"instance"`
	Service  string    `json:"service"`
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`
	// Config is the configuration that the instance runs; nil when it was made by a program.
	Config   *ConfigStatus `json:"config,omitempty"`
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining,omitempty"`
	Trouble  []string      `json:"trouble,omitempty"`
	Notices  []string      `json:"notices,omitempty"` // what is wrong, and keeps nothing from working
	// Orders is the revision of the last order of an operator that was applied, and OrdersBucket when the bucket was made in
	// which it is: one that was made anew begins at 1.
	Orders       uint64    `json:"orders"`
	OrdersBucket time.Time `json:"orders_bucket,omitzero"`
	// Parked messages are in the retry stream, waiting or due, and Stored ones in the dead letters: of all routes and instances,
	// up to 15 s old.
	Parked int64         `json:"parked"`
	Stored uint64        `json:"dead_letters"`
	Routes []RouteStatus `json:"routes"`
	// Gone are instances that ended within the last hour and are not back, as far as this one knows.
	Gone []MemberStatus `json:"gone,omitempty"`
	// Limits are those that hold on this instance, by name.
	Limits []LimitStatus `json:"limits,omitempty"`

	// Page of Pages: what is too large for one message comes in several, which AskStatus puts together.
	Page  int `json:"page,omitempty"`
	Pages int `json:"pages,omitempty"`
}

// RouteStatus is a route on one instance.
type RouteStatus struct {
	Name  string     `json:"name"`
	State string     `json:"state"` // one of States
	Why   string     `json:"why,omitempty"`
	Since *time.Time `json:"since,omitempty"` // of the outage, through all its waits and probes
	Until *time.Time `json:"until,omitempty"` // waiting, suspended: the next try; limited: when an endpoint permits more
	// Pause is the operator's order while it holds, whatever the state.
	Pause   *orders.Order `json:"pause,omitempty"`
	Stream  string        `json:"stream"`
	Durable string        `json:"durable"`
	// Subjects are those of the configuration.
	Subjects []string `json:"subjects,omitempty"`
	// Config is the digest of its settings; nil: nobody told it.
	Config *ConfigDigest `json:"config,omitempty"`
	// Key and Order are those of the configuration.
	Key   string `json:"key"`
	Order string `json:"order"`
	// Holder says which instance has the route; nil: all instances handle its messages.
	Holder *HolderStatus `json:"holder,omitempty"`
	// Partitions of a route that has some: the rest is what all parts that are on this instance say together. Nil: it has none.
	Partitions *PartitionsStatus `json:"partitions,omitempty"`
	// Running handlers, those that ignore their timeout, messages that wait for a slot, and for their key.
	Running int `json:"running"`
	Stuck   int `json:"stuck,omitempty"`
	// Former are those of Running that are handlers of before a change of the route.
	Former int `json:"former,omitempty"`
	Window int `json:"window"`
	Stash  int `json:"stash"`
	// Aside are messages that were given back to their stream, because something that they wait for is not over, and that are called
	// back when it is.
	Aside int            `json:"aside,omitempty"`
	Keys  map[string]int `json:"keys,omitempty"`
	// HeldMessages are in memory, HeldBytes their size but for those in handlers, and at HeldBytesLimit no more are pulled.
	HeldMessages   int `json:"held_messages"`
	HeldBytes      int `json:"held_bytes"`
	HeldBytesLimit int `json:"held_bytes_limit"`
	// CatchUp is what the durable had passed when the route joined it or got more subjects. Nil: nothing.
	CatchUp *CatchUpStatus `json:"catch_up,omitempty"`
	// Again is what the durable delivers although it was handled before, while some of it may be to come.
	Again []Again `json:"again,omitempty"`
	// Backlog is what waits for the route on all instances. Nil: its durable is not known.
	Backlog *Backlog `json:"backlog,omitempty"`
	// Totals of this instance since its start.
	Acked   uint64 `json:"acked"`
	Retried uint64 `json:"retried"`
	Dead    uint64 `json:"dead"`
	// Callers is what became of messages whose publishers asked for something. Nil: there was none.
	Callers *CallersStatus `json:"callers,omitempty"`
	// Fallback is the second handler. Nil: there is none.
	Fallback *FallbackStatus `json:"fallback,omitempty"`
	// Stored are the route's dead letters that are stored now, of all instances. Nil: not counted yet.
	Stored *int `json:"dead_letters,omitempty"`
	// Waiting are the keys that wait, probe or are suspended, longest first: as many as were asked for and fit. Of the others
	// WaitingMore is the number.
	Waiting []KeyStatus `json:"waiting,omitempty"`
	// KeyKnown answers StatusRequest.Key: the key has messages or failures, or is paused, on this instance.
	KeyKnown    bool `json:"key_known,omitempty"`
	WaitingMore int  `json:"waiting_more,omitempty"`
}

// KeyStatus is a key that does not simply flow.
type KeyStatus struct {
	// Key is cut when it is long: then KeyBytes is its length.
	Key      string     `json:"key"`
	KeyBytes int        `json:"key_bytes,omitempty"`
	State    string     `json:"state"`
	Why      string     `json:"why"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until,omitempty"`
	Stash    int        `json:"stash"`
	Failures int        `json:"failures,omitempty"`
	Restarts int        `json:"restarts,omitempty"`
	Error    string     `json:"error,omitempty"`
	Child    string     `json:"child"`
}

// HolderStatus says which instance has a route of which one instance at a time handles messages.
type HolderStatus struct {
	// Instance that has it; empty: none has.
	Instance string `json:"instance,omitempty"`
	// Fence is the number that handlers get as Relay-Fence.
	Fence uint64 `json:"fence,omitempty"`
	// Here tells whether that is the instance that says so.
	Here bool `json:"here,omitempty"`
	// Standbys are the other instances that would take it.
	Standbys []string `json:"standbys,omitempty"`
}

// PartitionsStatus says how a route with partitions is divided, and which of them an instance has.
type PartitionsStatus struct {
	Count int `json:"count"`
	// Generation is the number of times that the route was divided, and Stream holds its messages.
	Generation int    `json:"generation"`
	Stream     string `json:"stream"`
	// Here are the numbers of those that this instance has.
	Here []int `json:"here,omitempty"`
	// Nobody are those that no instance has.
	Nobody []int `json:"nobody,omitempty"`
	// Behind is how many messages of the stream the server has not copied yet. Only the instance that has partition 0 knows it: nil on the others.
	Behind *uint64 `json:"behind,omitempty"`
	// HandingOver are former generations of which there are messages still, which are handed over.
	HandingOver []int `json:"handing_over,omitempty"`
}

// Backlog is what waits for a route, over all instances, as the server said. Routes that share a durable share Stream and
// Outstanding too: the server counts by durable.
type Backlog struct {
	// Stream is how many messages the durable has not delivered yet.
	Stream uint64 `json:"stream"`
	// Outstanding deliveries were not settled: their handlers run, they are held in memory, or they were given back with a delay.
	Outstanding int `json:"outstanding"`
	// Parked messages are in the retry stream, waiting for their time or due. Nil: not counted yet.
	Parked *uint64 `json:"parked,omitempty"`
	// At is when the server said so; of what is parked up to some quarters of a minute earlier.
	At time.Time `json:"at"`
}

// TellsFor is for how long an outcome that reaches nobody is sent to its caller, again and again.
const TellsFor = 2 * time.Minute

// CallersStatus is what one instance had to do with callers since its start.
type CallersStatus struct {
	// Expired messages were past their deadline before they started; Forgotten ones were not wanted any more.
	Expired   uint64 `json:"expired"`
	Forgotten uint64 `json:"forgotten"`
	// Asking are messages that wait for their caller now: for the answer, or, when there is none in time, for their turn to start.
	Asking int `json:"asking,omitempty"`
	// Again are questions that said nothing and are asked once more, and messages that went back since too many waited.
	Again uint64 `json:"asked_again,omitempty"`
	// Silent are questions without an answer in time.
	Silent uint64 `json:"silent,omitempty"`
	// Replied are outcomes that reached somebody, Undelivered those that nobody took, or that could not be sent, and Unsure those that
	// were sent once, for there were too many to find out.
	Replied     uint64 `json:"replied"`
	Undelivered uint64 `json:"undelivered,omitempty"`
	Unsure      uint64 `json:"sent_once,omitempty"`
	// Telling are outcomes that have not reached their caller yet.
	Telling int `json:"telling,omitempty"`
	// Refused are headers that did not count.
	Refused uint64 `json:"refused,omitempty"`
}

// FallbackStatus is the second handler of a route on one instance.
type FallbackStatus struct {
	// When are the cases in which it is used.
	When []string `json:"when"`
	// Running are messages that it has now, Stuck its handlers that ignore their timeout.
	Running int `json:"running"`
	Stuck   int `json:"stuck,omitempty"`
	// Done and Failed count its attempts since the route began.
	Done   uint64 `json:"done"`
	Failed uint64 `json:"failed"`
	// FailedInRow are those since its last success, the first of them at FailingSince, and Error is why the last one failed.
	FailedInRow  int        `json:"failed_in_row,omitempty"`
	FailingSince *time.Time `json:"failing_since,omitempty"`
	Error        string     `json:"error,omitempty"`
}

// LimitStatus is a limit on one instance.
type LimitStatus struct {
	// Name is that of the configuration, or "rate of ROUTE" for the rate of a route.
	Name        string `json:"name"`
	Concurrency int    `json:"concurrency,omitempty"`
	// Rate is in a second.
	Rate  float64 `json:"rate,omitempty"`
	Burst int     `json:"burst,omitempty"`
	Per   string  `json:"per,omitempty"`
	Scope string  `json:"scope"`
	// Used are the messages that run under it, and Holders those of each route.
	Used int `json:"used"`
	// Part and PartRate are what this instance has of a limit of the service, and Others what the others have, in words.
	Part     int     `json:"part,omitempty"`
	PartRate float64 `json:"part_rate,omitempty"`
	Others   string  `json:"others,omitempty"`
	// Closed is why nothing may start under it on this instance now.
	Closed  string         `json:"closed,omitempty"`
	Holders map[string]int `json:"holders,omitempty"`
	// Left is how many more start until Until, because an endpoint asked for that with the words of Why; nil: none did.
	Left  *int       `json:"left,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	Why   string     `json:"why,omitempty"`
	// Waiting are the buckets that messages wait for, longest first, at most 20, and WaitingMore how many others there are.
	Waiting     []LimitWaiting `json:"waiting,omitempty"`
	WaitingMore int            `json:"waiting_more,omitempty"`
}

// LimitWaiting is a bucket of a limit that messages wait for.
type LimitWaiting struct {
	// Value is that of Limit.Per; empty for a limit without.
	Value  string    `json:"value,omitempty"`
	Used   int       `json:"used"`
	Since  time.Time `json:"since"`
	Routes []string  `json:"routes"`
}

// MemberStatus is an instance that is there no more, as the others remember it for an hour: those of services in which instances have sessions
// (routes with instances: one, limits of the service).
type MemberStatus struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Gone     time.Time `json:"gone"`
	// Clean: it said before that it ends.
	Clean bool `json:"clean,omitempty"`
}

// ConfigStatus says which configuration an instance runs. Whoever embeds a [Relay] may say it with [Relay.TellConfig].
type ConfigStatus struct {
	// Generation counts the configurations since the start, from 1.
	Generation int `json:"generation"`
	// Hash tells configurations apart: instances of a service should have the same one.
	Hash   string    `json:"hash,omitempty"`
	Loaded time.Time `json:"loaded"`
	// NeedsRestart are keys that changed and count only once the process is started again.
	NeedsRestart []string `json:"needs_restart,omitempty"`
	// Failed is why the last reload changed nothing, and when; empty when it did what it was to do.
	Failed   string    `json:"failed,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	// Routes are digests of the settings of each route, which the status has in [RouteStatus], and Rest is of all other keys, for whoever
	// compares a file with what runs.
	Routes map[string]ConfigDigest `json:"-"`
	Rest   ConfigDigest            `json:"rest,omitzero"`
}

// ConfigDigest tells settings apart, without saying them. A secret that stands in the file itself is no part
// of it; what other files hold is.
type ConfigDigest struct {
	// Live is of the settings that change while the route, or the process, goes on, and Anew of those for which it begins anew.
	Live string `json:"live"`
	Anew string `json:"anew"`
	// Own is of the settings that each instance has for itself, such as where it listens. Empty: there are none.
	Own string `json:"own,omitempty"`
}

// CatchUpStatus is what a durable had passed when a route joined it or got more subjects, and that is on its way to the route.
type CatchUpStatus struct {
	Subjects []string  `json:"subjects"`
	Handed   uint64    `json:"handed"` // over so far
	Held     uint64    `json:"held"`   // in the stream when it began
	Since    time.Time `json:"since"`
}

// Left is how many are to come, at most.
func (c *CatchUpStatus) Left() int {
	if c == nil || c.Handed >= c.Held {
		return 0
	}
	return int(c.Held - c.Handed)
}

func (c *CatchUpStatus) String() string {
	return fmt.Sprintf("%s: %d of %d messages that were stored before the route read these subjects are handed over (since %s)",
		strings.Join(c.Subjects, ", "), c.Handed, c.Held, c.Since.UTC().Format(time.RFC3339))
}

// Again are messages that a durable which is to be made, or which a route joins, will bring although they were handled before.
type Again struct {
	// Messages is how many at most: some may have been handled by another route than this one's, or be in flight.
	Messages uint64 `json:"messages"`
	// Durable is the one that delivered them before, and Routes those that it was ever for.
	Durable string `json:"durable"`
	// Service is that of the durable when it is another one's, and nobody pulls from it now: perhaps this one's former name. Empty: this one's.
	Service string   `json:"service,omitempty"`
	Routes  []string `json:"routes,omitempty"`
	// Deleted says that this durable does not exist any more.
	Deleted bool `json:"deleted,omitempty"`
	// Next is the sequence from which on it has not delivered them.
	Next uint64 `json:"next"`
	// All says that a start: all has them come.
	All bool `json:"-"`
}

func (a Again) String() string {
	if a.Deleted {
		return fmt.Sprintf("up to %d messages were handled before durable %s was deleted: none of them comes again with start: {seq: %d}", a.Messages, a.Durable, a.Next)
	}
	if a.Service != "" {
		return fmt.Sprintf("up to %d messages were handled by service %s, from durable %s, from which nobody pulls now: none of them comes again with start: {seq: %d}",
			a.Messages, a.Service, a.Durable, a.Next)
	}
	return fmt.Sprintf("up to %d messages were handled from durable %s, of route %s: none of them comes again with durable: %s, or with start: {seq: %d}",
		a.Messages, a.Durable, strings.Join(a.Routes, " and "), a.Durable, a.Next)
}

// What a status holds at most of what strangers wrote.
const (
	defaultKeys = 100
	maxKeys     = 10_000
	MaxKey      = 256 // bytes
	MaxText     = 512 // bytes
	MaxTroubles = 100
)

// StatusRequest says how much to tell. The zero value asks for all routes and up to a hundred keys of each.
type StatusRequest struct {
	// Route is the only one to tell of; empty: all.
	Route string `json:"route,omitempty"`
	// Keys is how many keys of each route are told at most. Zero means 100, -1 none; more than 10,000 are not.
	Keys int `json:"keys,omitempty"`
	// Key is one of which the answer says whether it is known now.
	Key *string `json:"key,omitempty"`
}

// Most is how many keys of each route are told.
func (q StatusRequest) Most() int {
	switch {
	case q.Keys < 0:
		return 0
	case q.Keys == 0:
		return defaultKeys
	}
	return min(q.Keys, maxKeys)
}

// Cut shortens a text to about so many bytes, and says how many it had.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:end], len(s))
}
