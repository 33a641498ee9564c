package retry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// Origin is what a message keeps wherever it waits: parked, due or dead. It travels in headers, see [Wrap].
type Origin struct {
	Route string
	// Stream, Consumer and Sequence say where the message was first delivered from.
	Stream, Consumer string
	Sequence         uint64
	// Time is when the message was stored in Stream, to the nanosecond: with Sequence it tells the message from one that
	// got the same sequence after the stream was made anew.
	Time time.Time
	// Subject is byte for byte the one it was published on.
	Subject string
	// Attempts counts the handler starts that failed, Deliveries the arrivals from JetStream in Consumer.
	Attempts   int
	Deliveries uint64
	// Returns counts how often the message was parked without an attempt.
	Returns int
	// Due is what a parked message waits for, by the clock of the instance that parked it; zero when it waits for nothing.
	Due time.Time
	// FirstFailure and LastFailure are zero when no attempt failed.
	FirstFailure, LastFailure time.Time
	// LastError is at most [MaxErrorLen] bytes of UTF-8 without control bytes once it was wrapped.
	LastError string
	// Replay counts how often the message was replayed from the dead letters.
	Replay int
	// Job is the id of the replay job that sent the message, or empty.
	Job string
	// Edited is set on a message whose body an operator changed for a replay, and ever after: it names the job that did,
	// and with which the first body is kept.
	Edited string
	// Past are the failures before each replay, oldest first, at most [MaxPast] of them.
	Past []Past
}

// Past is one failure of a message that was replayed since.
type Past struct {
	Replay   int       `json:"replay"` // the count it had then
	Job      string    `json:"job,omitempty"`
	Time     time.Time `json:"time"` // of the last failed attempt, or of the dead letter when there was none
	Attempts int       `json:"attempts"`
	Reason   string    `json:"reason"`
	Error    string    `json:"error,omitempty"` // at most [maxPastError] bytes
}

// MaxPast is how many failures a message remembers: the first one and the latest.
const MaxPast = 8

// maxPastError keeps the history of a message a fraction of its headers.
const maxPastError = 256

// Remember adds a failure to the past, and forgets the second one when there are too many.
func (o *Origin) Remember(p Past) {
	p.Error, p.Time = CleanText(p.Error, maxPastError), p.Time.UTC()
	past := append(slices.Clone(o.Past), p)
	if len(past) > MaxPast {
		past = slices.Delete(past, 1, 1+len(past)-MaxPast)
	}
	o.Past = past
}

// ID is the same for every attempt and every replay, and no other message has it:
//
//	<stream>~<consumer>~<sequence>~<when the stream stored it, in Unix nanoseconds, base 36>
//
// A stream that was made anew counts from 1 again, hence the time. In names all but letters, digits, - and _ is percent-encoded, so that
// the parts cannot be mistaken for one another. It holds no dots: it can be one token of a subject, and a webhook-id.
func (o Origin) ID() string {
	return string(AppendID(IDPrefix(o.Stream, o.Consumer), o.Sequence, o.Time))
}

// IDPrefix is what the ids of all messages of a consumer begin with, for [AppendID].
func IDPrefix(stream, consumer string) []byte {
	b := make([]byte, 0, 64)
	for _, name := range [...]string{stream, consumer} {
		for i := range len(name) {
			c := name[i]
			if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
				b = append(b, c)
			} else {
				b = fmt.Appendf(b, "%%%02X", c)
			}
		}
		b = append(b, '~')
	}
	return b
}

// AppendID completes an id.
func AppendID(prefix []byte, sequence uint64, stored time.Time) []byte {
	b := strconv.AppendUint(prefix, sequence, 10)
	return strconv.AppendInt(append(b, '~'), stored.UnixNano(), 36)
}

// MaxErrorLen is how many bytes of an error travel with a message.
const MaxErrorLen = 4096

// The headers of a message that waits. Those that may hold any byte have a second form with the suffix -64 and the value
// in base64: nats.go trims values and replaces CR and LF in them (nats.go, writeHeaderValue).
const (
	headerFormat       = "Relay-Format"
	headerRoute        = "Relay-Route"
	headerStream       = "Relay-Stream"
	headerConsumer     = "Relay-Consumer"
	headerSequence     = "Relay-Sequence"
	headerTime         = "Relay-Time"
	headerSubject      = "Relay-Subject"
	headerAttempts     = "Relay-Attempts"
	headerDeliveries   = "Relay-Deliveries"
	headerReturns      = "Relay-Returns"
	headerDue          = "Relay-Due"
	headerFirstFailure = "Relay-First-Failure"
	headerLastFailure  = "Relay-Last-Failure"
	headerLastError    = "Relay-Last-Error"
	headerReplay       = "Relay-Replay"
	headerJob          = "Relay-Job"
	headerEdited       = "Relay-Edited"
	headerPast         = "Relay-Past" // one value of JSON for each

	// headerRaw holds the original headers that nats.go could not send: one value for each of theirs, name and value in
	// base64 with a dot between.
	headerRaw = "Relay-Raw"

	// originalPrefix goes before the names of original headers that would have an effect.
	originalPrefix = "Relay-Orig-"

	suffix64 = "-64"
	format   = "1"
)

// ErrOtherVersion is part of an error about something whose format this version of relay does not read. It is good for whoever
// wrote it, and left alone.
var ErrOtherVersion = errors.New("was written by another version of relay")

// HeaderError is what [Unwrap] returns for a message that relay did not write, or that was changed since.
type HeaderError struct {
	Header string // the name of the header at fault
	Err    error
}

func (e *HeaderError) Error() string { return fmt.Sprintf("header %s: %v", e.Header, e.Err) }
func (e *HeaderError) Unwrap() error { return e.Err }

var (
	errMissing  = errors.New("missing")
	errRepeated = errors.New("given more than once")
	errNegative = errors.New("is negative")
)

// Wrap returns the headers under which a message waits: those of o, and the original ones such that [Unwrap] restores
// every name and every value in its order.
//
// Original headers named Nats-… or Relay-… (in any case) have an effect on the server or on relay, and Status and
// Description make nats.go take a message without a body for a status line (nats.go jetstream, checkMsg and
// convertDirectGetMsgResponseToMsg): they are kept under a prefix. Names that nats.go refuses to send, and values that it
// would change (white space around them, CR inside), reach relay from other clients: they are kept in base64. A name
// without values is dropped, for it never arrives from a server.
//
// What nats.go does not tell cannot be kept: white space before a value, the order of different names, headers with an
// empty name, and all of a header block that it cannot parse (nats.go, DecodeHeadersMsg).
//
// LastError is cleaned as by [CleanText]. Values are shared with original, the map is new and the caller's to change.
func Wrap(o Origin, original nats.Header) nats.Header {
	h := make(nats.Header, len(original)+16)
	h.Set(headerFormat, format)
	setText(h, headerRoute, o.Route)
	setText(h, headerStream, o.Stream)
	setText(h, headerConsumer, o.Consumer)
	h.Set(headerSequence, strconv.FormatUint(o.Sequence, 10))
	setTime(h, headerTime, o.Time)
	setText(h, headerSubject, o.Subject)
	h.Set(headerAttempts, strconv.Itoa(o.Attempts))
	h.Set(headerDeliveries, strconv.FormatUint(o.Deliveries, 10))
	if o.Returns != 0 {
		h.Set(headerReturns, strconv.Itoa(o.Returns))
	}
	if !o.Due.IsZero() {
		setTime(h, headerDue, o.Due)
	}
	if !o.FirstFailure.IsZero() {
		setTime(h, headerFirstFailure, o.FirstFailure)
	}
	if !o.LastFailure.IsZero() {
		setTime(h, headerLastFailure, o.LastFailure)
	}
	if text := CleanText(o.LastError, MaxErrorLen); text != "" {
		h.Set(headerLastError, text)
	}
	if o.Replay != 0 {
		h.Set(headerReplay, strconv.Itoa(o.Replay))
	}
	if o.Job != "" {
		setText(h, headerJob, o.Job)
	}
	if o.Edited != "" {
		setText(h, headerEdited, o.Edited)
	}
	for _, p := range o.Past {
		p.Error = CleanText(p.Error, maxPastError)
		if v, err := json.Marshal(p); err == nil { // a time beyond the year 9999 is what JSON cannot hold
			h.Add(headerPast, string(v))
		}
	}
	for name, values := range original {
		switch {
		case len(values) == 0:
		case !sendable(name, values):
			for _, v := range values {
				h.Add(headerRaw, encode64(name)+"."+encode64(v))
			}
		case hasEffect(name):
			h[originalPrefix+name] = values
		default:
			h[name] = values
		}
	}
	return h
}

// Unwrap is the reverse of [Wrap]: the origin, and the original headers, nil when there were none. Headers that the
// server added on the way (Nats-…), and other headers of relay, are not original and are left out. An error is a
// [*HeaderError].
func Unwrap(h nats.Header) (Origin, nats.Header, error) {
	r := reader{h: h}
	o := r.origin()
	original := r.original(h)
	if r.err != nil {
		return Origin{}, nil, r.err
	}
	return o, original, nil
}

// UnwrapOrigin is Unwrap for those who do not want the original headers, which cost more than all the rest.
func UnwrapOrigin(h nats.Header) (Origin, error) {
	r := reader{h: h}
	o := r.origin()
	if r.err != nil {
		return Origin{}, r.err
	}
	return o, nil
}

func (r *reader) origin() Origin {
	if v := r.text(headerFormat, headerFormat+suffix64); r.err == nil && v != format {
		if n, err := strconv.ParseUint(v, 10, 16); err == nil && n > 0 {
			r.fail(headerFormat, fmt.Errorf("%q %w, this one reads %s", v, ErrOtherVersion, format))
		} else {
			r.fail(headerFormat, fmt.Errorf("%q is not a format", v))
		}
	}
	o := Origin{
		Route:        r.text(headerRoute, headerRoute+suffix64),
		Stream:       r.text(headerStream, headerStream+suffix64),
		Consumer:     r.text(headerConsumer, headerConsumer+suffix64),
		Sequence:     r.uint(headerSequence),
		Time:         r.time(headerTime, required),
		Subject:      r.text(headerSubject, headerSubject+suffix64),
		Attempts:     r.count(headerAttempts, required),
		Deliveries:   r.uint(headerDeliveries),
		Returns:      r.count(headerReturns, optional),
		Due:          r.time(headerDue, optional),
		FirstFailure: r.time(headerFirstFailure, optional),
		LastFailure:  r.time(headerLastFailure, optional),
		Replay:       r.count(headerReplay, optional),
	}
	if text, ok := r.value(headerLastError); ok {
		o.LastError = CleanText(text, MaxErrorLen)
	}
	if r.has(headerJob, headerJob+suffix64) {
		o.Job = r.text(headerJob, headerJob+suffix64)
	}
	if r.has(headerEdited, headerEdited+suffix64) {
		o.Edited = r.text(headerEdited, headerEdited+suffix64)
	}
	for _, v := range r.h.Values(headerPast) {
		var p Past
		if err := json.Unmarshal([]byte(v), &p); err != nil {
			r.fail(headerPast, err)
			break
		}
		p.Error, p.Time = CleanText(p.Error, maxPastError), p.Time.UTC()
		o.Past = append(o.Past, p)
	}
	return o
}

func (r *reader) original(h nats.Header) (original nats.Header) {
	set := func(name string, values []string) {
		if original == nil {
			original = make(nats.Header, len(h))
		}
		original[name] = append(original[name], values...)
	}
	for name, values := range h {
		if orig, ok := strings.CutPrefix(name, originalPrefix); ok {
			set(orig, values)
		} else if !hasEffect(name) {
			set(name, values)
		}
	}
	for _, v := range h[headerRaw] {
		name, value, err := decodeRaw(v)
		if err != nil {
			r.fail(headerRaw, err)
			break
		}
		set(name, []string{value})
	}
	return original
}

// CleanText makes s fit for a header and a log line: at most limit bytes of valid UTF-8, cut between runes, every
// control byte and run of invalid bytes replaced by one space or one U+FFFD, no white space around it.
func CleanText(s string, limit int) string {
	if len(s) <= limit && isPrintable(s) { // as nearly always
		return s
	}
	if len(s) > 2*limit {
		s = s[:2*limit] // an error may be megabytes long; this is more than is kept
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	s = strings.Trim(s, " ")
	if len(s) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = strings.TrimRight(s[:cut], " ")
	}
	return s
}

// hasEffect tells whether the server, nats.go or relay could act on a header of that name.
func hasEffect(name string) bool {
	return hasPrefixFold(name, "Nats-") || hasPrefixFold(name, "Relay-") ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// sendable tells whether nats.go would send the header without a change (nats.go, isHeaderKeyValid and
// writeHeaderValue).
func sendable(name string, values []string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || strings.IndexByte("\"()/,:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	for _, v := range values {
		if strings.Trim(v, " \t") != v || strings.ContainsAny(v, "\r\n") {
			return false
		}
	}
	return name != ""
}

func setTime(h nats.Header, name string, t time.Time) {
	h.Set(name, t.UTC().Format(time.RFC3339Nano))
}

// setText writes printable ASCII as it is, so that other tools can show it, and anything else in base64.
func setText(h nats.Header, name, value string) {
	if isPrintable(value) {
		h.Set(name, value)
		return
	}
	h.Set(name+suffix64, encode64(value))
}

// isPrintable tells whether s is printable ASCII without spaces around it.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return strings.Trim(s, " ") == s
}

func encode64(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }

func decode64(s string) (string, error) {
	b, err := base64.RawStdEncoding.Strict().DecodeString(s)
	return string(b), err
}

func decodeRaw(s string) (name, value string, err error) {
	n, v, found := strings.Cut(s, ".")
	if !found {
		return "", "", errors.New("is not two words of base64 with a dot between")
	}
	if name, err = decode64(n); err != nil {
		return "", "", err
	}
	value, err = decode64(v)
	return name, value, err
}

// reader reads relay's headers and keeps the first error.
type reader struct {
	h   nats.Header
	err error
}

func (r *reader) fail(name string, err error) {
	if r.err == nil {
		r.err = &HeaderError{Header: name, Err: err}
	}
}

func (r *reader) has(name, name64 string) bool {
	return len(r.h.Values(name)) > 0 || len(r.h.Values(name64)) > 0
}

// value tells whether there is one.
func (r *reader) value(name string) (value string, ok bool) {
	switch v := r.h.Values(name); len(v) {
	case 0:
		return "", false
	case 1:
		return v[0], true
	}
	r.fail(name, errRepeated)
	return "", true
}

// text is what setText wrote. The second name is that of its form in base64.
func (r *reader) text(name, name64 string) string {
	plain, coded := r.h.Values(name), r.h.Values(name64)
	switch {
	case len(plain)+len(coded) == 0:
		r.fail(name, errMissing)
	case len(plain)+len(coded) > 1:
		r.fail(name, errRepeated)
	case len(plain) == 1:
		return plain[0]
	default:
		s, err := decode64(coded[0])
		if err != nil {
			r.fail(name64, err)
		}
		return s
	}
	return ""
}

func (r *reader) uint(name string) uint64 {
	s, ok := r.value(name)
	if !ok {
		r.fail(name, errMissing)
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		r.fail(name, err)
	}
	return n
}

// need is whether a header must be there.
type need uint8

const (
	required need = iota
	optional
)

func (r *reader) count(name string, need need) int {
	s, ok := r.value(name)
	if !ok {
		if need == required {
			r.fail(name, errMissing)
		}
		return 0
	}
	n, err := strconv.Atoi(s)
	switch {
	case err != nil:
		r.fail(name, err)
	case n < 0:
		r.fail(name, errNegative)
	}
	return n
}

func (r *reader) time(name string, need need) time.Time {
	s, ok := r.value(name)
	if !ok {
		if need == required {
			r.fail(name, errMissing)
		}
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		r.fail(name, err)
	}
	return t.UTC()
}
