// Package ownstream keeps the streams that relay made for itself as they have to be. Others may edit them (nats stream edit),
// and some edits remove parked messages or dead letters without a word.
package ownstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/subject"
)

// Error says that a stream of relay's own exists with a setting under which it is not safe, and which relay cannot change.
type Error struct {
	Stream string
	Field  string // as the configuration of the stream names it
	Have   any
	Want   any
	Do     string // what an operator can do; empty: edit the stream
	// Danger says that whoever set it may read, forge or remove what relay stores there: the stream must not be used.
	Danger bool
	Err    error // why the server refused the change; nil when it never takes one
}

func (e *Error) Error() string {
	do := cmp.Or(e.Do, "change it with `nats stream edit`, or, before anything is stored there, choose another service name")
	text := fmt.Sprintf("stream %s: %s is %v, but must be %v: %s", e.Stream, e.Field, e.Have, e.Want, do)
	if e.Err != nil {
		text += fmt.Sprintf(" (relay's own change failed: %v)", e.Err)
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// field is a setting that relay compares.
type field struct {
	name string
	get  func(*jetstream.StreamConfig) any
	// set brings it to what is wanted; nil: the server does not change it on a stream that exists.
	set func(have, want *jetstream.StreamConfig)
	// fine tells whether what is there will do though it is not what is wanted. It may be nil.
	fine func(have, want *jetstream.StreamConfig) bool
	// roomier tells whether what is there is less strict than what is wanted: nothing is lost by it. It may be nil.
	roomier func(have, want *jetstream.StreamConfig) bool
	// danger: whoever set it may read, forge or remove what relay stores. That it is set back is a warning.
	danger bool
	// do is what to do when relay cannot set it back, if it is not the usual.
	do string
}

// advice is what to do when relay cannot set it back. A setting that the server never changes cannot be edited by people either.
func (f *field) advice() string {
	if f.do == "" && f.set == nil {
		return anew
	}
	return f.do
}

// anew is what to do about a stream whose content may be somebody else's.
const anew = "look at what is in it, and who made it; stop relay, keep a copy (`nats stream backup`), remove the stream (`nats stream rm`), and start relay, which makes its own; or, before anything is stored there, choose another service name"

// limit is a bound of which zero and -1 mean none.
func limit[T int | int32 | int64](name string, at func(*jetstream.StreamConfig) *T) field {
	value := func(c *jetstream.StreamConfig) T { return max(*at(c), 0) }
	return field{
		name: name,
		get: func(c *jetstream.StreamConfig) any {
			if value(c) == 0 {
				return "unlimited"
			}
			return value(c)
		},
		set: func(have, want *jetstream.StreamConfig) { *at(have) = *at(want) },
		roomier: func(have, want *jetstream.StreamConfig) bool {
			return value(have) == 0 || value(want) != 0 && value(have) > value(want)
		},
	}
}

// may are switches that relay needs off unless it set them itself.
func may(name string, at func(*jetstream.StreamConfig) *bool) field {
	return field{
		name:   name,
		get:    func(c *jetstream.StreamConfig) any { return *at(c) },
		fine:   func(have, want *jetstream.StreamConfig) bool { return !*at(have) || *at(want) },
		danger: true,
	}
}

// mayReset is may for a switch that relay can set back.
func mayReset(name string, at func(*jetstream.StreamConfig) *bool) field {
	f := may(name, at)
	f.set = func(have, want *jetstream.StreamConfig) { *at(have) = *at(want) }
	return f
}

// must are switches that relay needs on when it set them.
func must(name string, at func(*jetstream.StreamConfig) *bool) field {
	return field{
		name: name,
		get:  func(c *jetstream.StreamConfig) any { return *at(c) },
		fine: func(have, want *jetstream.StreamConfig) bool { return *at(have) || !*at(want) },
		set:  func(have, want *jetstream.StreamConfig) { *at(have) = *at(want) },
	}
}

var fields = []field{
	{name: "retention", get: func(c *jetstream.StreamConfig) any { return c.Retention }},
	{name: "storage", get: func(c *jetstream.StreamConfig) any { return c.Storage }},
	{name: "mirror", danger: true, get: func(c *jetstream.StreamConfig) any { return origin(c.Mirror) }},
	may("sealed", func(c *jetstream.StreamConfig) *bool { return &c.Sealed }),
	may("deny_delete", func(c *jetstream.StreamConfig) *bool { return &c.DenyDelete }),
	may("deny_purge", func(c *jetstream.StreamConfig) *bool { return &c.DenyPurge }),
	mayReset("no_ack", func(c *jetstream.StreamConfig) *bool { return &c.NoAck }),
	may("allow_msg_counter", func(c *jetstream.StreamConfig) *bool { return &c.AllowMsgCounter }),
	mayReset("allow_atomic", func(c *jetstream.StreamConfig) *bool { return &c.AllowAtomicPublish }),
	mayReset("allow_batched", func(c *jetstream.StreamConfig) *bool { return &c.AllowBatchPublish }),
	{
		// The server publishes there with all rights.
		name: "republish", danger: true, get: func(c *jetstream.StreamConfig) any {
			if c.RePublish == nil {
				return "none"
			}
			return fmt.Sprintf("%s to %s", c.RePublish.Source, c.RePublish.Destination)
		},
		set: func(have, want *jetstream.StreamConfig) { have.RePublish = want.RePublish },
	},
	{
		name: "sources", danger: true, get: func(c *jetstream.StreamConfig) any { return origin(c.Sources...) },
		set: func(have, want *jetstream.StreamConfig) { have.Sources = want.Sources },
	},
	{
		name: "subject_transform", danger: true, get: func(c *jetstream.StreamConfig) any {
			if c.SubjectTransform == nil {
				return "none"
			}
			return fmt.Sprintf("%s to %s", c.SubjectTransform.Source, c.SubjectTransform.Destination)
		},
		set: func(have, want *jetstream.StreamConfig) { have.SubjectTransform = want.SubjectTransform },
	},
	{
		// Subjects that are there already stay: entries may be stored under them.
		name: "subjects", get: func(c *jetstream.StreamConfig) any { return c.Subjects },
		fine: func(have, want *jetstream.StreamConfig) bool {
			return !slices.ContainsFunc(want.Subjects, uncovered(have))
		},
		set: func(have, want *jetstream.StreamConfig) {
			for _, s := range slices.DeleteFunc(slices.Clone(want.Subjects), func(s string) bool { return !uncovered(have)(s) }) {
				have.Subjects = slices.DeleteFunc(slices.Clone(have.Subjects), func(h string) bool { return subject.Covers(s, h) })
				have.Subjects = append(have.Subjects, s)
			}
		},
	},
	{
		// Fewer than before are for people to choose: the default of one must not undo somebody's nats stream edit --replicas 3.
		name: "num_replicas", get: func(c *jetstream.StreamConfig) any { return max(c.Replicas, 1) },
		fine: func(have, want *jetstream.StreamConfig) bool { return max(have.Replicas, 1) >= max(want.Replicas, 1) },
		set:  func(have, want *jetstream.StreamConfig) { have.Replicas = want.Replicas },
	},
	{
		name: "max_age", get: func(c *jetstream.StreamConfig) any {
			if c.MaxAge == 0 {
				return "unlimited"
			}
			return c.MaxAge
		},
		set: func(have, want *jetstream.StreamConfig) {
			have.MaxAge = want.MaxAge
			have.Duplicates = want.Duplicates // the server refuses a window above the age
		},
		roomier: func(have, want *jetstream.StreamConfig) bool {
			return have.MaxAge == 0 || want.MaxAge != 0 && have.MaxAge > want.MaxAge
		},
	},
	limit("max_msgs", func(c *jetstream.StreamConfig) *int64 { return &c.MaxMsgs }),
	limit("max_bytes", func(c *jetstream.StreamConfig) *int64 { return &c.MaxBytes }),
	limit("max_msgs_per_subject", func(c *jetstream.StreamConfig) *int64 { return &c.MaxMsgsPerSubject }),
	limit("max_msg_size", func(c *jetstream.StreamConfig) *int32 { return &c.MaxMsgSize }),
	{
		name: "discard", get: func(c *jetstream.StreamConfig) any {
			if c.DiscardNewPerSubject {
				return fmt.Sprint(c.Discard, " per subject")
			}
			return c.Discard
		},
		set: func(have, want *jetstream.StreamConfig) {
			have.Discard, have.DiscardNewPerSubject = want.Discard, want.DiscardNewPerSubject
		},
	},
	must("allow_direct", func(c *jetstream.StreamConfig) *bool { return &c.AllowDirect }),
	must("allow_msg_schedules", func(c *jetstream.StreamConfig) *bool { return &c.AllowMsgSchedules }),
	may("allow_msg_schedules", func(c *jetstream.StreamConfig) *bool { return &c.AllowMsgSchedules }),
	must("allow_msg_ttl", func(c *jetstream.StreamConfig) *bool { return &c.AllowMsgTTL }),
	must("allow_rollup_hdrs", func(c *jetstream.StreamConfig) *bool { return &c.AllowRollup }),
	{
		// Where it is allowed, one message with Nats-Rollup removes all others. The server needs it for schedules and delete markers.
		name: "allow_rollup_hdrs", danger: true, get: func(c *jetstream.StreamConfig) any { return c.AllowRollup },
		fine: func(have, want *jetstream.StreamConfig) bool {
			return !have.AllowRollup || want.AllowRollup || want.AllowMsgSchedules || have.SubjectDeleteMarkerTTL > 0
		},
		set: func(have, want *jetstream.StreamConfig) { have.AllowRollup = want.AllowRollup },
	},
	{
		// Confirmed and not stored yet is lost when the server ends.
		name: "persist_mode", get: func(c *jetstream.StreamConfig) any { return c.PersistMode },
	},
	{
		// A replay that is repeated within the window reaches its route once.
		name: "duplicate_window", get: func(c *jetstream.StreamConfig) any { return c.Duplicates },
		fine: func(have, want *jetstream.StreamConfig) bool { return have.Duplicates >= want.Duplicates },
		set:  func(have, want *jetstream.StreamConfig) { have.Duplicates = want.Duplicates },
	},
	{
		name: "consumer_limits", get: func(c *jetstream.StreamConfig) any { return c.ConsumerLimits },
		set: func(have, want *jetstream.StreamConfig) { have.ConsumerLimits = want.ConsumerLimits },
	},
}

// left are the fields of which nothing is to be said, each with why.
var left = map[string]string{
	"name":                      "it is how the stream was found",
	"description":               "a text for people",
	"max_consumers":             "the server never changes it; a consumer too many is an error that says so",
	"discard_new_per_subject":   "compared with discard",
	"placement":                 "where it is stored is for those who run the servers to say; it is noted at the start",
	"compression":               "how it is stored is for those who run the servers to say",
	"first_seq":                 "counts when the stream is made, and not any more",
	"mirror_direct":             "counts for mirrors only, and none of these is one",
	"metadata":                  "relay notes there what it changed; the server writes there too",
	"template_owner":            "the server knows no templates any more",
	"subject_delete_marker_ttl": "only who may write the stream can make markers, and they go by themselves",
}

// origin names where messages come from.
func origin(sources ...*jetstream.StreamSource) string {
	var names []string
	for _, s := range sources {
		if s != nil {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func uncovered(have *jetstream.StreamConfig) func(string) bool {
	return func(s string) bool {
		return !slices.ContainsFunc(have.Subjects, func(h string) bool { return subject.Covers(h, s) })
	}
}

// When is when settings are compared.
type When uint8

// AtStart a stream gets what is wanted. While relay is Running only what would lose something is changed.
const (
	AtStart When = iota
	Running
)

// differ tells whether a setting must be changed. A running relay leaves what loses nothing, and what the configuration of another
// instance says: in a rolling change of dlq.max_age the instances that still run with the old one would undo it.
func (f field) differ(have, want *jetstream.StreamConfig, when When) bool {
	if f.fine != nil && f.fine(have, want) || when == Running && f.roomier != nil && (f.roomier(have, want) || f.ours(have)) {
		return false
	}
	return fmt.Sprint(f.get(have)) != fmt.Sprint(f.get(want))
}

// mark is the name in the stream's metadata under which relay notes to what it has changed a bound.
func (f field) mark() string { return "relay-" + f.name }

// ours tells whether the value that is there is one that an instance set by its configuration. One that somebody else set since differs
// from what was noted.
func (f field) ours(have *jetstream.StreamConfig) bool {
	noted, ok := have.Metadata[f.mark()]
	return ok && noted == fmt.Sprint(f.get(have))
}

// note writes down to what the bound was changed.
func (f field) note(next *jetstream.StreamConfig) {
	if f.roomier == nil {
		return
	}
	next.Metadata = maps.Clone(next.Metadata)
	if next.Metadata == nil {
		next.Metadata = make(map[string]string)
	}
	next.Metadata[f.mark()] = fmt.Sprint(f.get(next))
}

// Ensure makes the stream, or brings the one that is there to what is wanted. The error is an [*Error] if a setting must be
// changed that the server does not change, or refuses to. Several instances may call it at once.
func Ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, log *slog.Logger) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		first := want
		for _, f := range fields {
			f.note(&first) // for instances that know no such bound
		}
		stream, err = js.CreateStream(ctx, first)
		if err == nil {
			return stream, nil
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another instance was faster, with other settings
			stream, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, err
	}
	stream, _, err = mend(ctx, js, stream, want, AtStart, log)
	return stream, err
}

// Change is a setting that relay set back, or to what the configuration says.
type Change struct {
	Field, Was, Now string
	// Loses says that under what it was the server removes what is stored.
	Loses bool
}

func (c Change) String() string {
	return fmt.Sprintf("%s was %s, and is %s again", c.Field, c.Was, c.Now)
}

// Check compares a stream that is there, and changes it. It never makes one: the error is [jetstream.ErrStreamNotFound] when there is none, and an
// [*Error] as with Ensure.
func Check(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, when When, log *slog.Logger) (jetstream.Stream, error) {
	stream, _, err := Compare(ctx, js, want, when, log)
	return stream, err
}

// Compare is Check, and tells what it changed.
func Compare(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, when When, log *slog.Logger) (jetstream.Stream, []Change, error) {
	stream, err := js.Stream(ctx, want.Name)
	if err != nil {
		return nil, nil, err
	}
	return mend(ctx, js, stream, want, when, log)
}

func mend(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, want jetstream.StreamConfig, when When, log *slog.Logger) (jetstream.Stream, []Change, error) {
	have := stream.CachedInfo().Config
	next := have
	var changed []field
	var fault *Error
	if have.Placement != nil && when == AtStart {
		log.Info("one of relay's own streams is placed by somebody else, and stays where it is", "stream", want.Name, "cluster", have.Placement.Cluster, "tags", have.Placement.Tags)
	}
	strange, err := unknown(ctx, js, want.Name)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range fields {
		if !f.differ(&have, &want, when) {
			continue
		}
		if f.set == nil {
			if fault == nil {
				fault = &Error{Stream: want.Name, Field: f.name, Have: f.get(&have), Want: f.get(&want), Do: f.advice(), Danger: f.danger}
			}
			continue
		}
		f.set(&next, &want)
		f.note(&next)
		changed = append(changed, f)
	}
	if len(changed)+len(strange) == 0 || have.Mirror != nil { // a mirror has settings of its own
		return stream, nil, fault.orNil()
	}
	// What the client does not know it leaves out, which sets it back.
	updated, err := js.UpdateStream(ctx, next)
	if err == nil && len(strange) > 0 {
		err = settle(ctx, js, want.Name, strange, log)
	}
	if err != nil {
		// The limits of the account may forbid some other change. What is dangerous does not wait for that.
		safe, some := have, false
		for _, f := range changed {
			if f.danger {
				f.set(&safe, &want)
				some = true
			}
		}
		if some {
			if stream, again := js.UpdateStream(ctx, safe); again == nil {
				return mend(ctx, js, stream, want, when, log)
			}
		}
		if fault == nil || !fault.Danger {
			fault = refused(want, have, changed, strange, err)
		}
		return stream, nil, fault
	}
	var changes []Change
	for _, f := range changed {
		c := Change{f.name, fmt.Sprint(f.get(&have)), fmt.Sprint(f.get(&next)), f.roomier != nil || f.name == "discard"}
		changes = append(changes, c)
		args := []any{"stream", want.Name, "field", f.name, "was", c.Was, "now", c.Now}
		switch {
		case when == Running:
			log.Warn("a setting of one of relay's own streams was changed from outside and is set back", args...)
		case f.danger:
			log.Warn("a setting of one of relay's own streams let others read, forge or remove what is in it, and is set back: look at who set it", args...)
		default:
			log.Info("a setting of one of relay's own streams is changed to what the configuration says", args...)
		}
	}
	return updated, changes, fault.orNil()
}

// refused is the fault when the server refuses an update, about what is worst.
func refused(want, have jetstream.StreamConfig, changed []field, strange []setting, err error) *Error {
	slices.SortStableFunc(changed, func(a, b field) int {
		switch {
		case a.danger == b.danger:
			return 0
		case a.danger:
			return -1
		}
		return 1
	})
	if len(changed) > 0 && (changed[0].danger || len(strange) == 0) {
		f := changed[0]
		return &Error{Stream: want.Name, Field: f.name, Have: f.get(&have), Want: f.get(&want), Do: f.advice(), Danger: f.danger, Err: err}
	}
	return &Error{
		Stream: want.Name, Field: strange[0].name, Have: strange[0].value, Want: "unset", Err: err, Danger: true,
		Do: "this version of relay does not know what it does: use a newer version of relay, or unset it with a newer `nats stream edit`",
	}
}

func (e *Error) orNil() error {
	if e == nil {
		return nil
	}
	return e
}
