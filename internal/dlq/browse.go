package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/fingerprint"
	"github.com/relaymq/relay/internal/subject"
)

// Filter says which entries to list. The zero value means all of them.
type Filter struct {
	// Route is a name. It and Subject are matched by the server.
	Route string `json:"route,omitempty"`
	// Subject is a pattern for the original subject, with * and > as in NATS.
	Subject string `json:"subject,omitempty"`
	Reason  Reason `json:"reason,omitempty"`
	// Since and Until bound the time at which the entry was stored: from Since, before Until. Zero means no bound.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Text must be part of the last error, and Match must match it.
	Text  string         `json:"text,omitempty"`
	Match *regexp.Regexp `json:"match,omitempty"`
	// Fingerprint is that of the last error, see [fingerprint.Of].
	Fingerprint string `json:"fingerprint,omitempty"`
	// MinAttempts and MaxAttempts bound the attempts. Zero means no bound.
	MinAttempts int `json:"min_attempts,omitempty"`
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Body are conditions on the body, all of which must be met. They cost the transfer of the bodies.
	Body []BodyMatch `json:"body,omitempty"`
	// After is the sequence of the last entry of the page before.
	After uint64 `json:"after,omitempty"`
	// Limit is how many entries to list at most. Zero means all.
	Limit int `json:"limit,omitempty"`
	// WithBody fetches Header and Data as well, which costs their transfer.
	WithBody bool `json:"-"`
	// Looked is called for each entry that is read, whether it matches or not. It may be nil.
	Looked func() `json:"-"`
}

func (f Filter) validate() error {
	if f.Route != "" && !serviceRule.MatchString(f.Route) {
		return fmt.Errorf("route %q: must be 1 to 64 letters, digits, - or _", f.Route)
	}
	if f.Subject == "" {
		return nil
	}
	if len(f.Subject) > subject.MaxLen {
		return fmt.Errorf("subject of %d bytes is longer than %d", len(f.Subject), subject.MaxLen)
	}
	return subject.ValidatePattern(f.Subject)
}

// subjects are the server's part of the filter; none means everything. An entry whose subject could not be appended is
// stored as _ and is always among them.
func (f Filter) subjects(stored []string) []string {
	if f.Route == "" && (f.Subject == "" || f.Subject == ">") {
		return nil
	}
	var all []string
	for _, s := range stored {
		prefix := strings.TrimSuffix(s, ">")
		if f.Subject == "" {
			all = append(all, prefix+f.Route+".>")
			continue
		}
		head := prefix + cmp.Or(f.Route, "*") + ".*.*."
		all = append(all, head+f.Subject)
		if !subject.Matches(f.Subject, "_") {
			all = append(all, head+"_")
		}
	}
	return all
}

// matches is what the server cannot tell.
func (f Filter) matches(e Entry) bool {
	return (f.Route == "" || f.Route == e.Route) &&
		(f.Subject == "" || subject.Matches(f.Subject, e.Subject)) &&
		(f.Reason == "" || f.Reason == e.Reason) &&
		(f.Since.IsZero() || !e.StoredTime.Before(f.Since)) &&
		(f.Until.IsZero() || e.StoredTime.Before(f.Until)) &&
		strings.Contains(e.LastError, f.Text) &&
		(f.Match == nil || f.Match.MatchString(e.LastError)) &&
		e.Attempts >= f.MinAttempts && (f.MaxAttempts == 0 || e.Attempts <= f.MaxAttempts) &&
		(f.Fingerprint == "" || f.Fingerprint == fingerprint.Of(e.LastError))
}

// plausible looks at single headers of an entry before all of it is decoded, which takes several times as long.
func (f Filter) plausible(h nats.Header) bool {
	if v := h.Values(headerReason); f.Reason != "" && len(v) == 1 && v[0] != string(f.Reason) {
		return false
	}
	if v := h.Values("Relay-Attempts"); f.MinAttempts+f.MaxAttempts > 0 && len(v) == 1 {
		n, err := strconv.Atoi(v[0])
		if err == nil && (n < f.MinAttempts || f.MaxAttempts != 0 && n > f.MaxAttempts) {
			return false
		}
	}
	if v := h.Values("Relay-Last-Error"); len(v) == 1 && (!strings.Contains(v[0], f.Text) || f.Match != nil && !f.Match.MatchString(v[0])) {
		return false
	}
	return true
}

// serverOnly tells whether the server alone can tell what matches.
func (f Filter) serverOnly() bool {
	return f.Reason == "" && f.Until.IsZero() && f.Text == "" && f.Match == nil && f.Fingerprint == "" && f.MinAttempts+f.MaxAttempts == 0 &&
		len(f.Body) == 0 && f.Limit == 0
}

// Count is how many entries match, and how many there are that cannot be read. It transfers nothing when route, subject,
// Since and After are all that f says; then what cannot be read is among the entries.
func (s *Store) Count(ctx context.Context, f Filter) (entries, unreadable int, err error) {
	if f.serverOnly() {
		if err := f.validate(); err != nil {
			return 0, 0, err
		}
		return s.countPending(ctx, f)
	}
	for _, err := range s.List(ctx, f) {
		var bad *EntryError
		switch {
		case errors.As(err, &bad):
			unreadable++
		case err != nil:
			return entries, unreadable, err
		default:
			entries++
		}
	}
	return entries, unreadable, nil
}

// countPending asks consumers how much they would deliver.
func (s *Store) countPending(ctx context.Context, f Filter) (entries, unreadable int, err error) {
	info, err := s.info(ctx)
	if err != nil {
		return 0, 0, or(ctx, err)
	}
	subjects := f.subjects(info.Config.Subjects)
	if len(subjects) == 0 {
		subjects = []string{""}
	}
	for _, subj := range subjects {
		if f.Subject != "" && strings.HasSuffix(subj, ".*.*._") { // their subjects are in their headers
			for e, err := range s.listOn(ctx, f, []string{subj}, info) {
				var bad *EntryError
				switch {
				case errors.As(err, &bad):
					unreadable++
				case err != nil:
					return 0, 0, err
				case e.StoredSequence > 0:
					entries++
				}
			}
			continue
		}
		q := query{subject: subj, after: f.After, headersOnly: true}
		if f.After == 0 {
			q.since = f.Since
		}
		consumer, remove, err := s.reader(ctx, s.stream, q)
		if err != nil {
			return 0, 0, or(ctx, classify(err))
		}
		entries += int(consumer.CachedInfo().NumPending)
		remove()
	}
	return entries, unreadable, nil
}

// matchesBody is what can be told only with the body.
func (f Filter) matchesBody(body []byte) bool {
	if len(f.Body) == 0 {
		return true
	}
	v, ok := parseBody(body)
	for _, m := range f.Body {
		if !ok || !m.at(v, m.path) {
			return false
		}
	}
	return true
}

// Get reads one entry with its body. It returns an error that is [ErrNotFound] when the sequence holds none, and an
// [*EntryError] when what it holds is no entry, or its body cannot be had. On a replicated stream it may be moments behind.
func (s *Store) Get(ctx context.Context, seq uint64) (Entry, error) {
	if seq == 0 {
		return Entry{}, ErrNotFound // to the server, zero means the first message
	}
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.stream.GetMsg(call, seq)
	if err != nil {
		return Entry{}, or(ctx, classify(err))
	}
	return s.read(ctx, storedMsg(m))
}

// get is for what is going to be removed: unlike Get, it asks the leader.
func (s *Store) get(ctx context.Context, seq uint64) (stored, error) {
	if seq == 0 {
		return stored{}, ErrNotFound
	}
	m, err := s.ask(ctx, s.Name(), map[string]uint64{"seq": seq})
	if err != nil {
		return stored{}, err
	}
	return storedMsg(m), nil
}

func storedMsg(m *jetstream.RawStreamMsg) stored {
	return stored{subject: m.Subject, sequence: m.Sequence, time: m.Time, header: m.Header, data: m.Data, size: len(m.Data)}
}

// entry decodes a stored message, without its body and its original headers.
func (m *stored) entry() (Entry, error) { return m.entryBy(decodeBrief) }

// read decodes a stored message, with its body.
func (s *Store) read(ctx context.Context, m stored) (Entry, error) {
	e, err := m.entryBy(decode)
	if err != nil {
		return Entry{}, err
	}
	if e.body.name == "" {
		e.Data = m.data
		return e, nil
	}
	if e.Header, e.Data, err = s.loadBody(ctx, e.body); err != nil {
		return e, &EntryError{Sequence: m.sequence, Err: err}
	}
	return e, nil
}

func (m *stored) entryBy(decode func(nats.Header) (Entry, error)) (Entry, error) {
	e, err := decode(m.header)
	if err != nil {
		return Entry{}, &EntryError{Sequence: m.sequence, Err: err}
	}
	e.StoredSubject, e.StoredSequence, e.StoredTime = m.subject, m.sequence, m.time
	if e.body.name == "" {
		e.Size = m.size
	}
	return e, nil
}

// untilGrace is how far past Until a listing reads on: a new leader's clock may be behind the old one's.
const untilGrace = time.Minute

// smallEntry is up to which size, on average, entries are read whole even when no bodies are wanted: it takes the server a
// quarter of its time to leave them out, and most of such an entry are headers.
const smallEntry = 1 << 10

// List yields the entries that match, oldest first, up to the newest one at the time of the call. It reads page by page
// in bounded memory and returns no bodies unless f asks for them; large ones are not transferred then.
//
// A stored message that is no entry, or whose body cannot be had, yields an [*EntryError], and the listing goes on; any
// other error ends it. It uses a consumer in the server's memory, which goes with the iteration, and it may stop between
// two entries for as long as the caller likes.
func (s *Store) List(ctx context.Context, f Filter) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := f.validate(); err != nil {
			yield(Entry{}, err)
			return
		}
		info, err := s.info(ctx)
		if err != nil {
			yield(Entry{}, or(ctx, err))
			return
		}
		s.listOn(ctx, f, f.subjects(info.Config.Subjects), info)(yield)
	}
}

// listOn is List on subjects of the stream.
func (s *Store) listOn(ctx context.Context, f Filter, subjects []string, info *jetstream.StreamInfo) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		q := query{
			after: f.After,
			last:  info.State.LastSeq,
			page:  1000,
		}
		if f.After == 0 {
			q.since = f.Since
		}
		withBody := f.WithBody || len(f.Body) > 0
		q.headersOnly = !withBody && info.State.Bytes > info.State.Msgs*smallEntry
		if f.Limit > 0 {
			q.page = min(q.page, max(f.Limit, 8))
		}
		count, stopped := 0, false
		err := s.merge(ctx, s.stream, q, subjects, func(m stored) bool {
			if f.Looked != nil {
				f.Looked()
			}
			if !f.Until.IsZero() && m.time.After(f.Until.Add(untilGrace)) {
				return false
			}
			if !f.plausible(m.header) {
				return true
			}
			e, err := m.entry()
			if err == nil && !f.matches(e) {
				return true
			}
			if err == nil && withBody {
				e, err = s.read(ctx, m)
				if err == nil && !f.matchesBody(e.Data) {
					return true
				}
				if !f.WithBody {
					e.Header, e.Data = nil, nil
				}
			}
			if err == nil {
				count++
			}
			stopped = !yield(e, err)
			return !stopped && (f.Limit == 0 || count < f.Limit)
		})
		if err != nil && !stopped {
			yield(Entry{}, or(ctx, err))
		}
	}
}

// info asks for the state of the stream, and again when no answer comes.
func (s *Store) info(ctx context.Context) (info *jetstream.StreamInfo, err error) {
	for range listTries {
		info, err = answered(ctx, s.timeout, func(ctx context.Context) (*jetstream.StreamInfo, error) { return s.stream.Info(ctx) })
		if ctx.Err() != nil || !errors.Is(err, nats.ErrTimeout) {
			break
		}
	}
	return info, classify(err)
}

// Discard removes one entry, readable or not, and its body. It returns an error that is [ErrNotFound] when it is gone. A
// body that a replay under way may need, or that cannot be removed now, is left to [Store.Sweep].
func (s *Store) Discard(ctx context.Context, seq uint64) error {
	m, err := s.get(ctx, seq)
	if err != nil {
		return err
	}
	var body object
	if r, err := readRef(m.header); err == nil && r.name != "" {
		// Read before the entry goes: a replay that touches the object later wins against the removal below.
		if body, err = s.object(ctx, r.name); err != nil && !errors.Is(err, ErrNoBody) {
			return err
		}
	}
	if err := s.take(ctx, seq); err != nil {
		return err
	}
	if body.sequence == 0 || body.info.Metadata[metaReplayed] != "" || body.info.Metadata[metaEntry] != m.subject {
		return nil
	}
	if err := s.drop(ctx, body); err != nil && !errors.Is(err, ErrNotFound) {
		s.log.Warn("dead letters: cannot remove the stored body of a discarded entry; the next sweep of unused bodies removes it", "sequence", seq, "error", err)
	}
	return nil
}
