package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/transient"
)

// The server says how many dead letters there ever were, and how many are left. What went, and relay did not take out, was removed by
// somebody else: by a limit of the stream that was edited, by a purge, by nats stream rmm. So all that take dead letters out, instances
// and commands, note it in one record, the book, in the bucket of the jobs:
//
//	lost = went since the book began - taken out by relay - gone by dlq.max_age
//
// Who takes out says first how many at most, and afterwards how many. If it dies in between, it is known that relay took between the two,
// and so between which numbers the loss is. The book is changed by compare-and-set.

const (
	bookKey    = "dlq.book" // a key with a dot is no job
	bookFormat = 1
	// mostClaimed is how many removals are announced at once, at most.
	mostClaimed = 1024
	// claimAge is how long what was announced is remembered by who did so.
	claimAge = time.Hour
)

// BookEvery is how soon after a look at the book the next one has to be, so that what went by age in between is told from what was lost.
const BookEvery = time.Minute

// pages is the book as it is stored.
type pages struct {
	Format  int       `json:"format"`
	Since   time.Time `json:"since"`
	Created time.Time `json:"created"` // of the stream
	Base    uint64    `json:"base"`    // what had gone when the book began
	Taken   uint64    `json:"taken"`   // by relay
	Unsure  uint64    `json:"unsure"`  // relay took these, or somebody else did
	Aged    uint64    `json:"aged"`    // at most
	// Claims are those of who takes out just now, or died at it.
	Claims map[string]claim `json:"claims,omitempty"`
	Before Loss             `json:"before,omitzero"` // of streams that were there before this one
	Look   look             `json:"look"`
	Told   uint64           `json:"told"` // of the loss, what the log of an instance has said
}

type claim struct {
	Most uint64    `json:"most"`
	Done uint64    `json:"done"`
	At   time.Time `json:"at"`
}

// look is what an instance saw last.
type look struct {
	At      time.Time     `json:"at"`
	Last    uint64        `json:"last"`
	Entries uint64        `json:"entries"`
	Went    uint64        `json:"went"`
	Claimed uint64        `json:"claimed"`
	MaxAge  time.Duration `json:"max_age,omitempty"`
	// Old entries go by age until [BookEvery] after the look, at most.
	Old uint64 `json:"old,omitempty"`
}

// claimed is what relay took out at most, and done at least.
func (p *pages) claimed() (most, done uint64) {
	most, done = p.Taken+p.Unsure, p.Taken
	for _, c := range p.Claims {
		most, done = most+c.Most, done+c.Done
	}
	return most, done
}

// Loss is how many dead letters went that relay did not take out.
type Loss struct {
	AtLeast uint64 `json:"at_least"`
	AtMost  uint64 `json:"at_most"`
	// Since is when the counting began.
	Since time.Time `json:"since,omitzero"`
	// Entries are there.
	Entries uint64 `json:"entries"`
}

func (l Loss) String() string {
	if l.AtMost <= l.AtLeast {
		return strconv.FormatUint(l.AtLeast, 10)
	}
	return fmt.Sprintf("at least %d and at most %d", l.AtLeast, l.AtMost)
}

func minus(a uint64, b ...uint64) uint64 {
	for _, n := range b {
		a -= min(a, n)
	}
	return a
}

// Lost compares the stream with the book. The error is [ErrNotFound] when there is no book yet.
func (s *Store) Lost(ctx context.Context) (Loss, error) {
	l, _, err := s.lost(ctx, nil)
	return l, err
}

// Look is Lost of an instance that looks at least every [BookEvery], and knows after what age dead letters go, 0 for none. It begins the
// book when there is none. untold is how much of the loss no instance has told of yet; it counts as told.
func (s *Store) Look(ctx context.Context, age time.Duration) (l Loss, untold uint64, err error) {
	for range 5 {
		if l, untold, err = s.lost(ctx, &age); !transient.Raced(err) {
			break
		}
	}
	return l, untold, err
}

// BeginBook begins the book if there is none. Until then nothing that goes is counted as lost. age is that of [Store.Look].
func (s *Store) BeginBook(ctx context.Context, age time.Duration) error {
	_, _, err := s.readBook(ctx)
	if errors.Is(err, ErrNotFound) {
		_, _, err = s.Look(ctx, age)
	}
	return err
}

// AcceptLost has the counting of what was lost begin anew, and returns what was lost until then: an operator knows of it now. The error is
// [ErrNotFound] when there is no book.
func (s *Store) AcceptLost(ctx context.Context) (Loss, error) {
	l, err := s.Lost(ctx)
	if err != nil {
		return l, err
	}
	return l, s.amend(ctx, func(p *pages) {
		before := min(p.Before.AtLeast, l.AtLeast)
		p.Base += l.AtLeast - before
		p.Before, p.Told, p.Since = Loss{}, minus(p.Told, l.AtLeast), time.Now().UTC()
	})
}

func (s *Store) lost(ctx context.Context, age *time.Duration) (l Loss, untold uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	first, _, err := s.readBook(ctx)
	if err != nil && (age == nil || !errors.Is(err, ErrNotFound)) {
		return l, 0, err
	}
	now, younger := time.Now(), uint64(0)
	if age != nil && *age > 0 {
		if younger, err = s.storedSince(ctx, now.Add(BookEvery-*age)); err != nil {
			return l, 0, err
		}
	}
	stream, err := s.js.Stream(ctx, s.Name())
	if err != nil {
		return l, 0, classify(err)
	}
	info := stream.CachedInfo()
	// What is taken out after the server was asked is in the second reading, and not in the first.
	p, revision, err := s.readBook(ctx)
	st := info.State
	switch {
	case errors.Is(err, ErrNotFound) && age != nil:
		p = s.newBook(info)
		first = p
	case err != nil:
		return l, 0, err
	case first == nil || p.Created != first.Created || p.Look.At != first.Look.At: // another instance has looked
		first = p
	}
	went := st.LastSeq - min(st.LastSeq, st.Msgs)
	made := info.Created.UTC()
	if !made.Equal(p.Created) {
		// All that was there went with the stream before.
		most, _ := p.claimed()
		p.Before.AtLeast += minus(p.Look.Went, p.Base, p.Look.Claimed, p.Aged) + minus(p.Look.Entries, most-min(most, p.Look.Claimed), s.aged(p, now, p.Look.MaxAge, p.Look.Entries))
		p.Before.AtMost = max(p.Before.AtMost, p.Before.AtLeast)
		next := s.newBook(info)
		next.Since, next.Before, next.Told, next.Claims, next.Base = p.Since, p.Before, p.Told, p.Claims, 0
		p, first = next, next
	} else {
		if known := max(p.Look.Last, s.book.last()); st.Msgs == 0 && st.LastSeq > known {
			p.Unsure += st.LastSeq - known // a purge up to a number that no message had yet
		}
		until := p.Look.MaxAge
		if age != nil && *age > 0 && (until == 0 || *age < until) { // it is shorter now
			until, p.Look.At = *age, time.Time{}
		}
		p.Aged += s.aged(p, now, until, minus(went, p.Look.Went))
	}
	most, _ := p.claimed()
	_, done := first.claimed()
	l.AtLeast = p.Before.AtLeast + minus(went, p.Base, most, p.Aged)
	l.AtMost = max(l.AtLeast, p.Before.AtMost+minus(went, p.Base, done, p.Aged))
	l.Since, l.Entries = p.Since, st.Msgs
	if age == nil {
		return l, 0, nil
	}
	untold = minus(l.AtLeast, p.Told)
	next := look{At: now.UTC(), Last: st.LastSeq, Entries: st.Msgs, Went: went, Claimed: most, MaxAge: *age}
	if *age > 0 {
		next.Old = minus(st.Msgs, younger)
	}
	if same := p.Look; untold == 0 && revision > 0 && *age == 0 && same.Last == next.Last && same.Went == next.Went && now.Sub(same.At) < jobAge/30 {
		return l, 0, nil
	}
	p.Look, p.Told = next, max(p.Told, l.AtLeast)
	for id, c := range p.Claims {
		if now.Sub(c.At) > claimAge {
			p.Taken, p.Unsure = p.Taken+c.Done, p.Unsure+minus(c.Most, c.Done)
			delete(p.Claims, id)
		}
	}
	return l, untold, s.writeBook(ctx, p, revision)
}

// aged is how many of those that went since the last look may have done so by age.
func (s *Store) aged(p *pages, now time.Time, age time.Duration, went uint64) uint64 {
	switch since := now.Sub(p.Look.At); {
	case age == 0:
		return 0
	case since > BookEvery || since > age:
		return went
	}
	return min(went, p.Look.Old)
}

// storedSince is how many entries were stored since then.
func (s *Store) storedSince(ctx context.Context, then time.Time) (uint64, error) {
	request, err := json.Marshal(map[string]any{"start_time": then.UTC(), "next_by_subj": ">", "batch": 1})
	if err != nil {
		return 0, err
	}
	m, err := s.js.Conn().RequestWithContext(ctx, s.apiPrefix()+"DIRECT.GET."+s.Name(), request)
	if err != nil {
		return 0, classify(err)
	}
	switch status := m.Header.Get("Status"); status {
	case "":
		n, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
		return n + 1, err
	case "404":
		return 0, nil
	default:
		return 0, errors.New("stream " + s.Name() + ": " + status + " " + m.Header.Get("Description"))
	}
}

func (s *Store) newBook(info *jetstream.StreamInfo) *pages {
	went := info.State.LastSeq - min(info.State.LastSeq, info.State.Msgs)
	return &pages{Since: time.Now().UTC(), Created: info.Created.UTC(), Base: went, Look: look{Went: went}}
}

// readBook asks the leader: a replica may not have what was announced a moment ago.
func (s *Store) readBook(ctx context.Context) (*pages, uint64, error) {
	bucket := jobsName(s.service)
	m, err := s.last(ctx, "KV_"+bucket, "$KV."+bucket+"."+bookKey)
	if err != nil {
		return nil, 0, err
	}
	p := new(pages)
	if err := json.Unmarshal(m.Data, p); err != nil {
		return nil, 0, fmt.Errorf("the record of what was taken out of the dead letters: %w", err)
	}
	if p.Format > bookFormat {
		return nil, 0, fmt.Errorf("the record of what was taken out of the dead letters is of a newer version of relay")
	}
	return p, m.Sequence, nil
}

func (s *Store) writeBook(ctx context.Context, p *pages, revision uint64) error {
	p.Format = bookFormat
	v, err := json.Marshal(p)
	if err != nil {
		return err
	}
	kv, err := s.js.KeyValue(ctx, jobsName(s.service))
	if err != nil {
		return err
	}
	_, err = kv.Update(ctx, bookKey, v, revision)
	return err
}

// book is what this process writes there.
type book struct {
	id      string
	highest uint64 // number of what this process stored
	gate    sync.Mutex

	mu       sync.Mutex
	most     uint64 // announced
	begun    uint64
	flying   int
	done     uint64
	unsure   uint64
	unnoted  uint64 // removals that could not be announced
	inRecord bool
}

func newBook() *book { return &book{id: nuid.Next()} }

func (b *book) stored(number uint64) {
	b.mu.Lock()
	b.highest = max(b.highest, number)
	b.mu.Unlock()
}

func (b *book) last() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.highest
}

// take removes an entry, and has the book say so.
func (s *Store) take(ctx context.Context, number uint64) error {
	b := s.book
	b.gate.Lock() // one announces, and the others wait for it
	noted := b.announce(ctx, s)
	b.gate.Unlock()
	err := s.remove(ctx, s.Name(), number)
	var refused *jetstream.APIError
	b.mu.Lock()
	b.flying--
	switch {
	case err == nil && noted:
		b.done++
	case err == nil:
		b.unnoted++
	case !errors.Is(err, ErrNotFound) && !errors.As(err, &refused) && !errors.Is(err, nats.ErrNoResponders):
		b.unsure++
	}
	last := b.flying == 0
	b.mu.Unlock()
	if last {
		b.gate.Lock()
		defer b.gate.Unlock()
		b.settle(context.WithoutCancel(ctx), s)
	}
	return err
}

// announce has the book permit one more removal. Without the book things are removed all the same: an operator who makes room on a
// full server must be able to.
func (b *book) announce(ctx context.Context, s *Store) bool {
	b.mu.Lock()
	b.flying++
	b.begun++
	more := b.begun > b.most
	// Those that come one by one are announced one by one.
	most := b.most + min(mostClaimed, max(1, b.most*min(uint64(b.flying-1), 1)))
	done := b.done
	b.mu.Unlock()
	if !more {
		return true
	}
	err := s.amend(ctx, func(p *pages) {
		if p.Claims == nil {
			p.Claims = make(map[string]claim)
		}
		p.Claims[b.id] = claim{Most: most, Done: done, At: time.Now().UTC()}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.begun--
		s.log.Warn("dead letters: a removal could not be recorded beforehand, so the removed entries may count as lost", "error", err)
		return false
	}
	b.most, b.inRecord = most, true
	return true
}

// settle has the book say what was taken out, when nothing more is on its way.
func (b *book) settle(ctx context.Context, s *Store) {
	b.mu.Lock()
	done, unsure, idle := b.done+b.unnoted, b.unsure, b.flying == 0
	nothing := !b.inRecord && done+unsure == 0
	b.mu.Unlock()
	if !idle || nothing {
		return
	}
	announced := b.inRecord
	err := s.amend(ctx, func(p *pages) {
		if _, there := p.Claims[b.id]; there || !announced { // else the answer to the first try was lost
			p.Taken, p.Unsure = p.Taken+done, p.Unsure+unsure
		}
		p.Claims = maps.Clone(p.Claims)
		delete(p.Claims, b.id)
	})
	if err != nil {
		s.log.Debug("dead letters: a removal could not be recorded", "error", err)
		return
	}
	b.mu.Lock()
	b.most, b.begun, b.done, b.unsure, b.unnoted, b.inRecord = 0, 0, 0, 0, 0, false
	b.mu.Unlock()
}

// amend changes the book by compare-and-set, and begins it when there is none. Without the bucket no instance keeps a book.
func (s *Store) amend(ctx context.Context, change func(p *pages)) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		p, revision, err := s.readBook(ctx)
		switch {
		case errors.Is(err, ErrNoStream):
			return nil
		case errors.Is(err, ErrNotFound):
			stream, err := s.js.Stream(ctx, s.Name())
			if err != nil {
				return classify(err)
			}
			p = s.newBook(stream.CachedInfo())
		case err != nil:
			return err
		}
		change(p)
		if err = s.writeBook(ctx, p, revision); !transient.Raced(err) || ctx.Err() != nil {
			return err
		}
	}
}
