package dlq

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
)

// Entry is a dead letter.
type Entry struct {
	Route string
	// Stream, Consumer and Sequence say where the message was first delivered from, and Time when it was stored there.
	Stream, Consumer string
	Sequence         uint64
	Time             time.Time
	// Subject is byte for byte the one it was published on.
	Subject string
	// Header and Data are the original ones. Header is nil when there were none, and both are when the entry was listed without bodies.
	Header nats.Header
	Data   []byte

	Reason Reason
	// Attempts counts the handler starts that failed. FirstFailure and LastFailure are zero when none did.
	Attempts                  int
	FirstFailure, LastFailure time.Time
	// LastError is at most 4096 bytes, and Stack that of a panic, at most 16 KiB, or empty.
	LastError string
	Stack     []byte
	// Instance is which relay gave the message up.
	Instance string
	// Replay counts how often the message was replayed, and Job is the last replay job that did so, or empty.
	Replay int
	Job    string
	// Edited names the job in which an operator changed the body, or is empty.
	Edited string
	// Past are the failures before each replay, oldest first: the first one and the latest, at most 8.
	Past []Past

	// StoredSubject, StoredSequence and StoredTime say where the entry is, and Size how many bytes its body has.
	StoredSubject  string
	StoredSequence uint64
	StoredTime     time.Time
	Size           int

	read dlq.Entry // what the fields were read from
}

// Past is one failure of a message that was replayed since.
type Past struct {
	Replay   int // how often it had been replayed before
	Job      string
	Time     time.Time // of the last failed attempt, or of the dead letter when there was none
	Attempts int
	Reason   string
	Error    string // at most 256 bytes
}

// ID is the same for every attempt and every replay of the message, and no other message has it. Handlers get it as Msg.ID.
func (e Entry) ID() string { return e.entry().ID() }

// MarshalJSON writes the entry as the command relay dlq show --json does.
func (e Entry) MarshalJSON() ([]byte, error) { return json.Marshal(e.entry()) }

// UnmarshalJSON reads what MarshalJSON wrote. An entry without its body is an error. Where it is stored is not in it but for the sequence: [Store.Get]
// brings the entry that can be replayed.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var in dlq.Entry
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*e = entryOf(in)
	return nil
}

func entryOf(e dlq.Entry) Entry {
	out := Entry{
		Route: e.Route, Stream: e.Stream, Consumer: e.Consumer, Sequence: e.Sequence, Time: e.Time, Subject: e.Subject, Header: e.Header, Data: e.Data,
		Reason: e.Reason, Attempts: e.Attempts, FirstFailure: e.FirstFailure, LastFailure: e.LastFailure, LastError: e.LastError, Stack: e.Stack,
		Instance: e.Instance, Replay: e.Replay, Job: e.Job, Edited: e.Edited,
		StoredSubject: e.StoredSubject, StoredSequence: e.StoredSequence, StoredTime: e.StoredTime, Size: e.Size,
		read: e,
	}
	for _, p := range e.Past {
		out.Past = append(out.Past, Past(p))
	}
	return out
}

// entry is what a Store takes. Of an entry that was read, what is not told outside is as it was read.
func (e Entry) entry() dlq.Entry {
	in := e.read
	in.Route, in.Stream, in.Consumer, in.Sequence, in.Time, in.Subject, in.Header, in.Data = e.Route, e.Stream, e.Consumer, e.Sequence, e.Time, e.Subject, e.Header, e.Data
	in.Reason, in.Attempts, in.FirstFailure, in.LastFailure, in.LastError, in.Stack = e.Reason, e.Attempts, e.FirstFailure, e.LastFailure, e.LastError, e.Stack
	in.Instance, in.Replay, in.Job, in.Edited = e.Instance, e.Replay, e.Job, e.Edited
	in.StoredSubject, in.StoredSequence, in.StoredTime, in.Size = e.StoredSubject, e.StoredSequence, e.StoredTime, e.Size
	return in
}
