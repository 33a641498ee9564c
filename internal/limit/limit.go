package limit

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Bounds are what a limit allows. Zero of a field is no bound.
type Bounds struct {
	Places int     // at once
	Rate   float64 // starts a second
	Burst  int     // starts that may come at once; at least 1 with a rate
}

// Book holds the limits of a process.
type Book struct {
	mu     sync.Mutex
	limits map[string]*Limit
	turns  uint64
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{limits: make(map[string]*Limit)} }

// Limit is a named bound.
type Limit struct {
	book    *Book
	name    string
	bounds  Bounds
	buckets map[string]*Bucket
	swept   int // buckets that were left by the last sweep
	slow    *slow
	valid   func() bool // whether what it allows may be used; nil: always
	note    string      // for status
	closed  string      // why there is no room at all; empty: there may be
	shared  bool        // others, elsewhere, have parts of it
	lacks   string      // why there is no room until a part comes; empty: there is a part
	changed func()      // told, with the lock held, that something changed; may be nil
	planned bool        // it is not in force
}

// Bucket is where places are taken.
type Bucket struct {
	limit    *Limit
	value    string
	used     int
	rate     starts
	seats    []*seat
	line     []*seat // who waits
	since    time.Time
	timer    *time.Timer // for the next token, or the end of what Slow began
	promised int         // reserved, of used: a token is kept for each
	// passing is set while somebody offers what there is; again asks for one more look.
	passing, again bool
}

// seat is a member's part in a bucket.
type seat struct {
	bucket *Bucket
	member *Member
	used   int
	refs   int // Places that have it
	asks   int // how often it was put in the line, also when it stood there
	// reserve are places in other buckets, for what stands in this line; patience is for how long the next one may be kept.
	reserve  *reserve
	patience time.Duration
}

// slow is a bound below the configured one, for a time.
type slow struct {
	until time.Time
	left  int // starts
	why   string
}

// Member takes places: it is a route.
type Member struct {
	Name string
	// Offer is told that there may be room in a bucket in whose line the member stands first. It starts one thing that waits for
	// the bucket, if it can, and tells whether more wait. It is called without the lock of the book.
	Offer func(*Bucket) (more bool)
	// Waiting tells how many would start now if the bucket had room; it may stop counting at most. It is called without the lock of
	// the book. Nil: one, whenever the member stands in the line.
	Waiting func(b *Bucket, most int) int
}

// Get is the limit of that name; nil when there is none.
func (b *Book) Get(name string) *Limit {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits[name]
}

// Set makes the limit of that name, or changes what it allows. What is taken stays taken.
func (b *Book) Set(name string, bounds Bounds) *Limit {
	b.mu.Lock()
	l := b.limits[name]
	if l == nil {
		l = b.make(name)
	}
	l.planned = false
	b.mu.Unlock()
	l.Bound(bounds)
	return l
}

func (b *Book) make(name string) *Limit {
	l := &Limit{book: b, name: name, buckets: make(map[string]*Bucket)}
	b.limits[name] = l
	return l
}

// Plan is the limit of that name as it is; when there is none, one that Get returns and Status does not show, until
// Accept, or Set, has it be in force, or Discard forgets it.
func (b *Book) Plan(name string, bounds Bounds) *Limit {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.limits[name]
	if l == nil {
		l = b.make(name)
		l.bounds, l.planned = bounds, true
	}
	return l
}

// Accept has all limits that were planned be in force.
func (b *Book) Accept() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.limits {
		l.planned = false
	}
}

// Discard forgets all limits that were planned.
func (b *Book) Discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.limits, func(_ string, l *Limit) bool { return l.planned })
}

// Remove forgets a limit. Whoever still uses it is bounded by it until that ends.
func (b *Book) Remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.limits, name)
}

// Name of the limit.
func (l *Limit) Name() string { return l.name }

// Bound changes what the limit allows from now on.
func (l *Limit) Bound(bounds Bounds) {
	l.book.mu.Lock()
	l.bounds = bounds
	for _, b := range l.buckets {
		b.rate.bound(bounds)
	}
	l.book.mu.Unlock()
	l.pass()
}

// Close lets nothing start any more, with the reason; an empty one ends that.
func (l *Limit) Close(why string) {
	l.book.mu.Lock()
	changed := l.closed != why
	l.closed = why
	pass := l.letGo()
	l.book.mu.Unlock()
	passAll(pass)
	if changed && why == "" {
		l.pass()
	}
}

// Fence has f asked before each start whether what the limit allows may still be used; nil ends that. F must not block nor call the limit.
func (l *Limit) Fence(f func() bool) {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.valid = f
}

// Slow lets so many more start until then, and no more; zero is none at all. While an earlier word holds, it can only be made
// stricter: by a smaller number, or by a longer time for the same number. Several calls with the same number allow that number, not their sum.
func (l *Limit) Slow(starts int, until time.Time, why string) {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	now := time.Now()
	if s := l.slow; s != nil && now.Before(s.until) && (starts > s.left || starts == s.left && until.Before(s.until)) {
		return
	}
	l.slow = &slow{until: until, left: max(0, starts), why: why}
}

// EndSlow ends what Slow began.
func (l *Limit) EndSlow() {
	l.book.mu.Lock()
	l.slow = nil
	l.book.mu.Unlock()
	l.pass()
}

// Watch has f called whenever a place is taken or given back, or a member begins to wait, with the lock of the book held: it must neither
// block nor call the limit.
func (l *Limit) Watch(f func()) {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.changed = f
}

// pass offers what there is in all buckets.
func (l *Limit) pass() {
	l.book.mu.Lock()
	var list []*Bucket
	for _, b := range l.buckets {
		if len(b.line) > 0 {
			list = append(list, b)
		}
	}
	l.book.mu.Unlock()
	passAll(list)
}

func passAll(list []*Bucket) {
	for _, b := range list {
		b.Pass()
	}
}

// bucket is that of a value. The lock is held.
func (l *Limit) bucket(value string, now time.Time) *Bucket {
	b := l.buckets[value]
	if b == nil {
		if len(l.buckets) > 2*l.swept+64 {
			l.sweep(now)
		}
		b = &Bucket{limit: l, value: value}
		b.rate.bound(l.bounds)
		l.buckets[value] = b
	}
	return b
}

// sweep forgets buckets that nobody uses and that would be made anew as they are: strangers may choose their values.
func (l *Limit) sweep(now time.Time) {
	for value, b := range l.buckets {
		if len(b.seats) == 0 && b.rate.isRested(now) {
			delete(l.buckets, value)
		}
	}
	l.swept = len(l.buckets)
}

// Name is that of its limit, with the value of the bucket if it has one.
func (b *Bucket) Name() string {
	if b.value == "" {
		return b.limit.name
	}
	return b.limit.name + "[" + b.value + "]"
}

// Limit is the name of the limit.
func (b *Bucket) Limit() string { return b.limit.name }

// Shared tells whether all of a member's messages need this bucket, and not only those of a value.
func (b *Bucket) Shared() bool { return b.value == "" }

// room tells whether one more may start now; if not, from when on it may be as far as time is concerned, or the zero time. The lock is held.
func (b *Bucket) room(now time.Time) (ok bool, at time.Time) {
	l := b.limit
	if l.closed != "" || l.lacks != "" || l.valid != nil && !l.valid() || l.bounds.Places > 0 && b.used >= l.bounds.Places {
		return false, time.Time{}
	}
	ok, at = b.rate.allows(1+b.promised, now)
	if at := l.slowUntil(now); !at.IsZero() {
		return false, at
	}
	return ok, at
}

// slowUntil is until when nothing may start because of Slow; the zero time if something may. The lock is held.
func (l *Limit) slowUntil(now time.Time) time.Time {
	switch s := l.slow; {
	case s == nil:
	case !now.Before(s.until):
		l.slow = nil
	case s.left == 0:
		return s.until
	}
	return time.Time{}
}

// arm sees to it that the line is looked at when the next token is there. The lock is held.
func (b *Bucket) arm(now time.Time) {
	ok, at := b.room(now)
	if ok {
		at = now
	}
	if at.IsZero() {
		return // whoever gives a place back looks
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(at.Sub(now), b.Pass)
		return
	}
	b.timer.Reset(at.Sub(now))
}

// Pass offers what there is to those who wait, one after the other.
func (b *Bucket) Pass() {
	mu := &b.limit.book.mu
	mu.Lock()
	defer mu.Unlock()
	if b.passing {
		b.again = true
		return
	}
	b.passing = true
	defer func() { b.passing = false }()
	for {
		b.again = false
		for now := time.Now(); len(b.line) > 0; now = time.Now() {
			if ok, _ := b.room(now); !ok {
				b.arm(now)
				break
			}
			first := b.line[0]
			asks := first.asks
			mu.Unlock()
			more := first.member.Offer(b)
			mu.Lock()
			if i := slices.Index(b.line, first); i >= 0 {
				b.line = slices.Delete(b.line, i, i+1)
				if more || first.asks != asks { // it may have asked anew since it answered
					b.line = append(b.line, first)
				}
			}
			if r := first.reserve; r != nil && !slices.Contains(b.line, first) {
				pass := r.release(nil) // what it was for does not wait here any more
				mu.Unlock()
				passAll(pass)
				mu.Lock()
			}
		}
		if !b.again {
			return
		}
	}
}

// stand puts a seat in the line. The lock is held.
func (b *Bucket) stand(s *seat, now time.Time) {
	s.asks++
	if slices.Contains(b.line, s) {
		return
	}
	if len(b.line) == 0 {
		b.since = now
	}
	b.line = append(b.line, s)
}
