package dlq

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// Reason is why a message is dead.
type Reason string

// The reasons there are.
const (
	Exhausted Reason = "exhausted" // its attempts are spent
	Rejected  Reason = "dead"      // its handler said so
	Crash     Reason = "crash"     // it kept ending the process it ran in
	Expired   Reason = "expired"   // its deadline or its route's max_age is over
	GaveUp    Reason = "gave_up"   // its key gave up
	Operator  Reason = "operator"  // somebody took it out of its retries
)

// MaxStack is how many bytes of a stack are kept, from its beginning.
const MaxStack = 16 << 10

// Origin is where a message comes from, and what became of it so far: its route, stream, durable and sequence, its attempts and its last error.
type Origin = retry.Origin

// Entry is a dead letter.
type Entry struct {
	Origin
	// Header and Data are the original ones. Header is nil when there were none, and both are when the entry was listed
	// without bodies; the headers of a large message come with its body only.
	Header nats.Header
	Data   []byte
	Reason Reason
	// Stack is that of the panic, or empty; at most [MaxStack] bytes are kept.
	Stack []byte
	// Instance is which relay gave the message up. Put fills it from [Config] when it is empty.
	Instance string

	// StoredSubject, StoredSequence and StoredTime say where the entry is, and Size how many bytes its body has. They are
	// set when it is read; Put ignores them.
	StoredSubject  string
	StoredSequence uint64
	StoredTime     time.Time
	Size           int

	body       ref
	wantPrefix string // of one that was imported: where it was stored
	imported   string // tells its import from all others; empty: it was not imported
}

// Headers of an entry beside those of [retry.Wrap]. Unwrap leaves them out, as anything named Relay-.
const (
	headerReason   = "Relay-Reason"
	headerStack    = "Relay-Stack-64" // base64: a stack has line ends, which headers cannot
	headerInstance = "Relay-Instance"
	headerImported = "Relay-Imported"

	// A large message names its object in these. They are on entries and on due messages.
	headerBody     = "Relay-Body"
	headerBodySum  = "Relay-Body-SHA256"
	headerBodySize = "Relay-Body-Size"
)

// headerRoom is how many bytes of headers a message may have before they go to an object. The server refuses more than
// 65,535 (10097), and adds some of its own to what it delivers.
const headerRoom = 60 << 10

// ref names the object that holds the body and the original headers of a large message. The zero ref is none.
type ref struct {
	name string
	sum  string // hex SHA-256 of the object
	size int    // of the body alone
}

func (r ref) set(h nats.Header) {
	h.Set(headerBody, r.name)
	h.Set(headerBodySum, r.sum)
	h.Set(headerBodySize, strconv.Itoa(r.size))
}

func readRef(h nats.Header) (ref, error) {
	if len(h.Values(headerBody)) == 0 {
		return ref{}, nil
	}
	r := ref{name: h.Get(headerBody), sum: h.Get(headerBodySum)}
	if !isSum(r.name) {
		return ref{}, &retry.HeaderError{Header: headerBody, Err: errors.New("is not the name of an object")}
	}
	if !isSum(r.sum) {
		return ref{}, &retry.HeaderError{Header: headerBodySum, Err: errors.New("is not a SHA-256 in hex")}
	}
	n, err := strconv.Atoi(h.Get(headerBodySize))
	if err != nil || n < 0 {
		return ref{}, &retry.HeaderError{Header: headerBodySize, Err: errors.New("is not a size")}
	}
	r.size = n
	return r, nil
}

func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// encode returns the headers of an entry. Those of the original are left out when its body is elsewhere.
func encode(e Entry) nats.Header {
	original := e.Header
	if e.body.name != "" {
		original = nil
	}
	h := retry.Wrap(e.Origin, original)
	h.Set(headerReason, retry.CleanText(string(e.Reason), 64))
	if s := e.Stack; len(s) > 0 {
		h.Set(headerStack, base64.StdEncoding.EncodeToString(s[:min(len(s), MaxStack)]))
	}
	if i := retry.CleanText(e.Instance, 256); i != "" {
		h.Set(headerInstance, i)
	}
	if e.imported != "" {
		h.Set(headerImported, e.imported)
	}
	if e.body.name != "" {
		e.body.set(h)
	}
	return h
}

// decode is the reverse of encode. Data, and what is known from where the message is stored, are left to the caller.
func decode(h nats.Header) (Entry, error) {
	o, original, err := retry.Unwrap(h)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(o, original, h)
}

// decodeBrief is decode without the original headers.
func decodeBrief(h nats.Header) (Entry, error) {
	o, err := retry.UnwrapOrigin(h)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(o, nil, h)
}

// entryOf reads what h has beside the origin.
func entryOf(o Origin, original nats.Header, h nats.Header) (Entry, error) {
	var err error
	e := Entry{Origin: o, Header: original, Reason: Reason(h.Get(headerReason)), Instance: h.Get(headerInstance), imported: h.Get(headerImported)}
	if e.Reason == "" {
		return Entry{}, &retry.HeaderError{Header: headerReason, Err: errors.New("missing")}
	}
	if s := h.Get(headerStack); s != "" {
		if e.Stack, err = base64.StdEncoding.DecodeString(s); err != nil {
			return Entry{}, &retry.HeaderError{Header: headerStack, Err: err}
		}
	}
	if e.body, err = readRef(h); err != nil {
		return Entry{}, err
	}
	e.Size = e.body.size
	return e, nil
}

// same tells whether both are the same failure of the same message.
func same(a, b Origin) bool {
	return a.Stream == b.Stream && a.Consumer == b.Consumer && a.Sequence == b.Sequence && a.Time.Equal(b.Time) && a.Replay == b.Replay
}

// durableMark keeps the messages of a durable apart from those of another one of the same route: a durable that was renamed may have the same
// messages once more. One with the name of its route needs none.
func durableMark(o Origin) string {
	if o.Consumer == o.Route {
		return ""
	}
	sum := sha256.Sum256([]byte(o.Consumer))
	return "-" + hex.EncodeToString(sum[:4])
}

// entryToken is the token of an entry's subject that tells it from all others of its route and stream.
func entryToken(o Origin) string {
	return fmt.Sprintf("%d-%d-%d%s", o.Sequence, o.Time.UnixNano(), o.Replay, durableMark(o))
}

// entrySubject is where the entry of o is stored.
func entrySubject(prefix string, o Origin) (string, error) {
	head := fmt.Sprintf("%s.%s.%s.%s.", prefix, o.Route, o.Stream, entryToken(o))
	if strings.Contains(o.Route, ".") || strings.Contains(o.Stream, ".") {
		return "", fmt.Errorf("route %q and stream %q must not hold dots", o.Route, o.Stream)
	}
	if err := subject.ValidateLiteral(head + "_"); err != nil {
		return "", err
	}
	if utf8.ValidString(o.Subject) && subject.ValidateLiteral(head+o.Subject) == nil {
		return head + o.Subject, nil
	}
	return head + "_", nil
}

// dueSubject is where a replay with the origin o is handed to its route. The r keeps it apart from parked messages, whose
// last number is a time.
func (s *Store) dueSubject(o Origin) string {
	return fmt.Sprintf("%s.due.%s.%s.%d-%d%s-r%d", s.service, o.Route, o.Stream, o.Sequence, o.Time.UnixNano(), durableMark(o), o.Replay)
}

// fits tells whether the server takes a message.
func fits(h nats.Header, data []byte, maxPayload int64) bool {
	size := (&nats.Msg{Header: h}).Size()
	return size <= headerRoom && int64(size+len(data)) <= maxPayload
}

// storedHeader is one header in an object: bytes, because JSON strings cannot hold invalid UTF-8.
type storedHeader struct {
	Name   []byte   `json:"name"`
	Values [][]byte `json:"values"`
}

// encodeBody makes an object: the headers, sorted, as one line of JSON, then the body. The same message always gives the
// same bytes.
func encodeBody(h nats.Header, data []byte) []byte {
	stored := make([]storedHeader, 0, len(h))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		s := storedHeader{Name: []byte(name)}
		for _, v := range h[name] {
			s.Values = append(s.Values, []byte(v))
		}
		stored = append(stored, s)
	}
	line, err := json.Marshal(stored)
	if err != nil {
		panic(err) // byte slices always marshal
	}
	return slices.Concat(line, []byte{'\n'}, data)
}

func decodeBody(blob []byte) (nats.Header, []byte, error) {
	line, data, found := bytes.Cut(blob, []byte{'\n'})
	if !found {
		return nil, nil, errors.New("no line of headers")
	}
	var stored []storedHeader
	if err := json.Unmarshal(line, &stored); err != nil {
		return nil, nil, err
	}
	if len(stored) == 0 {
		return nil, data, nil
	}
	h := make(nats.Header, len(stored))
	for _, s := range stored {
		for _, v := range s.Values {
			h.Add(string(s.Name), string(v))
		}
	}
	return h, data, nil
}
