package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/subject"
)

// Filter says which entries to list. The zero value means all of them.
type Filter struct {
	// Route is a name. It and Subject are matched by the server.
	Route string
	// Subject is a pattern for the original subject, with * and > as in NATS.
	Subject string
	Reason  Reason
	// Since and Until bound the time at which the entry was stored: from Since, before Until. Zero means no bound.
	Since, Until time.Time
	// Text must be part of the last error, and Match must match it.
	Text  string
	Match *regexp.Regexp
	// After is the sequence of the last entry of the page before.
	After uint64
	// Limit is how many entries to list at most. Zero means all.
	Limit int
	// WithBody fetches Header and Data as well, which costs their transfer.
	WithBody bool
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
		(f.Match == nil || f.Match.MatchString(e.LastError))
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
	return s.read(ctx, storedMsg(m), true)
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

// read decodes a stored message.
func (s *Store) read(ctx context.Context, m stored, withBody bool) (Entry, error) {
	e, err := decode(m.header)
	if err != nil {
		return Entry{}, &EntryError{Sequence: m.sequence, Err: err}
	}
	e.StoredSubject, e.StoredSequence, e.StoredTime = m.subject, m.sequence, m.time
	large := e.body.name != ""
	if !large {
		e.Size = m.size
	}
	switch {
	case !withBody:
		e.Header = nil
	case large:
		if e.Header, e.Data, err = s.loadBody(ctx, e.body); err != nil {
			return e, &EntryError{Sequence: m.sequence, Err: err}
		}
	default:
		e.Data = m.data
	}
	return e, nil
}

// untilGrace is how far past Until a listing reads on: a new leader's clock may be behind the old one's.
const untilGrace = time.Minute

// List yields the entries that match, oldest first, up to the newest one at the time of the call. It reads page by page
// in bounded memory and transfers no bodies unless f asks for them.
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
		info, err := s.stream.Info(ctx)
		if err != nil {
			yield(Entry{}, or(ctx, classify(err)))
			return
		}
		q := query{
			after: f.After,
			last:  info.State.LastSeq,
			page:  200,
		}
		if f.After == 0 {
			q.since = f.Since
		}
		if f.WithBody {
			q.page = int(min(max(pageBytes/max(s.js.Conn().MaxPayload(), 1), 1), 200))
		} else {
			q.headersOnly = true
		}
		if f.Limit > 0 {
			q.page = min(q.page, max(f.Limit, 8))
		}
		count, stopped := 0, false
		err = s.merge(ctx, s.stream, q, f.subjects(info.Config.Subjects), func(m stored) bool {
			if !f.Until.IsZero() && m.time.After(f.Until.Add(untilGrace)) {
				return false
			}
			e, err := s.read(ctx, m, false)
			if err == nil && !f.matches(e) {
				return true
			}
			if err == nil && f.WithBody {
				e, err = s.read(ctx, m, true)
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
	if err := s.remove(ctx, s.Name(), seq); err != nil {
		return err
	}
	if body.sequence == 0 || body.info.Metadata[metaReplayed] != "" || body.info.Metadata[metaEntry] != m.subject {
		return nil
	}
	if err := s.drop(ctx, body); err != nil && !errors.Is(err, ErrNotFound) {
		s.log.Warn("dead letters: the body of a discarded entry is left to the sweep", "sequence", seq, "error", err)
	}
	return nil
}
