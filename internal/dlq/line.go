package dlq

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/retry"
)

// LineFormat is the version of an entry as JSON. A reader refuses others.
const LineFormat = 1

// line is an entry as JSON, such as relay dlq export writes. Text that is not UTF-8 is in base64 in a field of its own,
// next to the text that stands for it.
type line struct {
	Format       int          `json:"format"`
	Number       uint64       `json:"number"`
	Stored       time.Time    `json:"stored"`
	Prefix       string       `json:"prefix,omitempty"`
	Reason       string       `json:"reason"`
	Error        string       `json:"error"`
	Route        string       `json:"route"`
	Subject      string       `json:"subject"`
	Subject64    []byte       `json:"subject_base64,omitempty"`
	Stream       string       `json:"stream"`
	Consumer     string       `json:"consumer"`
	Sequence     uint64       `json:"sequence"`
	Published    time.Time    `json:"published"`
	Attempts     int          `json:"attempts"`
	Deliveries   uint64       `json:"deliveries"`
	FirstFailure *time.Time   `json:"first_failure,omitempty"`
	LastFailure  *time.Time   `json:"last_failure,omitempty"`
	Replay       int          `json:"replay"`
	Job          string       `json:"job,omitempty"`
	Edited       string       `json:"edited,omitempty"`
	Past         []retry.Past `json:"past,omitempty"`
	Instance     string       `json:"instance"`
	Stack        string       `json:"stack,omitempty"`
	Stack64      []byte       `json:"stack_base64,omitempty"`
	Size         int          `json:"size"`
	Header       nats.Header  `json:"header,omitempty"`
	Header64     [][]string   `json:"header_base64,omitempty"` // a name and its values, each in base64
	Body         *string      `json:"body,omitempty"`
	Body64       []byte       `json:"body_base64,omitempty"`
}

// MarshalJSON writes the entry as one object, from which UnmarshalJSON makes the same entry, byte for byte. An entry that was
// listed without its body has neither body nor header in it.
func (e Entry) MarshalJSON() ([]byte, error) {
	l := line{
		Format: LineFormat, Number: e.StoredSequence, Stored: e.StoredTime, Prefix: e.prefix(), Reason: string(e.Reason),
		Error: e.LastError, Route: e.Route, Subject: e.Subject, Stream: e.Stream, Consumer: e.Consumer, Sequence: e.Sequence,
		Published: e.Time, Attempts: e.Attempts, Deliveries: e.Deliveries, FirstFailure: maybe(e.FirstFailure),
		LastFailure: maybe(e.LastFailure), Replay: e.Replay, Job: e.Job, Edited: e.Edited, Past: e.Past,
		Instance: e.Instance, Size: e.Size,
	}
	if !utf8.ValidString(e.Subject) {
		l.Subject64 = []byte(e.Subject)
	}
	if utf8.Valid(e.Stack) {
		l.Stack = string(e.Stack)
	} else {
		l.Stack64 = e.Stack
	}
	if validHeader(e.Header) {
		l.Header = e.Header
	} else {
		for _, name := range slices.Sorted(maps.Keys(e.Header)) {
			h := []string{base64.StdEncoding.EncodeToString([]byte(name))}
			for _, v := range e.Header[name] {
				h = append(h, base64.StdEncoding.EncodeToString([]byte(v)))
			}
			l.Header64 = append(l.Header64, h)
		}
	}
	switch {
	case e.Data == nil && e.Size > 0: // listed without it
	case utf8.Valid(e.Data):
		l.Body = new(string(e.Data))
	default:
		l.Body64 = e.Data
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// UnmarshalJSON reads what MarshalJSON wrote. An entry without its body is an error: it could not be stored again.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var l line
	if err := json.Unmarshal(data, &l); err != nil {
		return err
	}
	if l.Format != LineFormat {
		return fmt.Errorf("format %d: this version of relay reads %d", l.Format, LineFormat)
	}
	if l.Body == nil && l.Body64 == nil {
		return errors.New("the line has no body: write it with relay dlq export")
	}
	if l.Route == "" || l.Stream == "" || l.Sequence == 0 || l.Reason == "" || l.Published.IsZero() || l.Attempts < 0 || l.Replay < 0 {
		return errors.New("route, stream, sequence, published or reason is missing")
	}
	*e = Entry{
		Origin: Origin{
			Route: l.Route, Stream: l.Stream, Consumer: l.Consumer, Sequence: l.Sequence, Time: l.Published.UTC(), Subject: l.Subject,
			Attempts: l.Attempts, Deliveries: l.Deliveries, LastError: l.Error, Replay: l.Replay, Job: l.Job, Edited: l.Edited, Past: l.Past,
		},
		Reason: Reason(l.Reason), Instance: l.Instance, Stack: []byte(l.Stack), Header: l.Header,
		StoredSequence: l.Number, StoredTime: l.Stored, wantPrefix: l.Prefix,
	}
	if l.Subject64 != nil {
		e.Subject = string(l.Subject64)
	}
	if l.Stack64 != nil {
		e.Stack = l.Stack64
	}
	if len(e.Stack) == 0 {
		e.Stack = nil
	}
	if l.FirstFailure != nil {
		e.FirstFailure = l.FirstFailure.UTC()
	}
	if l.LastFailure != nil {
		e.LastFailure = l.LastFailure.UTC()
	}
	for _, h := range l.Header64 {
		if e.Header == nil {
			e.Header = make(nats.Header)
		}
		var name string
		for i, v := range h {
			b, err := base64.StdEncoding.DecodeString(v)
			switch {
			case err != nil:
				return fmt.Errorf("header_base64: %w", err)
			case i == 0:
				name = string(b)
			default:
				e.Header[name] = append(e.Header[name], string(b))
			}
		}
	}
	e.Data = l.Body64
	if l.Body != nil {
		e.Data = []byte(*l.Body)
	}
	e.Size = len(e.Data)
	return nil
}

// prefix of the subject under which e is stored.
func (e Entry) prefix() string {
	before, _, found := strings.Cut(e.StoredSubject, fmt.Sprintf(".%s.%s.%s.", e.Route, e.Stream, entryToken(e.Origin)))
	if !found { // stored by a version that had no mark of the durable
		before, _, found = strings.Cut(e.StoredSubject, fmt.Sprintf(".%s.%s.%d-%d-%d.", e.Route, e.Stream, e.Sequence, e.Time.UnixNano(), e.Replay))
	}
	if !found {
		return e.wantPrefix
	}
	return cmp.Or(before, e.wantPrefix)
}

func validHeader(h nats.Header) bool {
	for name, values := range h {
		if !utf8.ValidString(name) {
			return false
		}
		for _, v := range values {
			if !utf8.ValidString(v) {
				return false
			}
		}
	}
	return true
}

func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
