// Package trouble keeps what does not work just now, and says it so that people are not flooded: each trouble once in a list with its reason and
// since when, and few lines in the log however many messages it stands in the way of.
package trouble

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// List is what does not work just now. The log has a line when something begins, one a minute while it lasts, and one when it is over. Make it with
// [NewList].
type List struct {
	log    *slog.Logger
	report func(what string, err error)

	mu   sync.Mutex
	list []*Trouble
}

// NewList returns an empty one. Report is told when something begins, and when it is over: then err is nil.
func NewList(log *slog.Logger, report func(what string, err error)) *List {
	return &List{log: log, report: report}
}

// Trouble is one thing that does not work. It does not change.
type Trouble struct {
	What  string
	Err   error
	Since time.Time

	logged time.Time
	until  time.Time // when it is over by itself; zero: never
}

// Error names what is in trouble, unless the reason does so itself.
func (t *Trouble) Error() string {
	text := t.Err.Error()
	if !strings.Contains(text, t.What) {
		text = t.What + ": " + text
	}
	return fmt.Sprintf("%s (since %s)", text, t.Since.UTC().Format(time.RFC3339))
}

func (t *Trouble) Unwrap() error { return t.Err }

// Passes tells whether it may be over by itself.
func (t *Trouble) Passes() bool { return transient.Is(t.Err) }

// Note says that what does not work, and that it is tried again.
func (t *List) Note(what string, err error, now time.Time) { t.note(what, err, now, time.Time{}) }

// NoteFor is for what nobody sees the end of: it is over when it is not noted again for that long; see Expire.
func (t *List) NoteFor(span time.Duration, what string, err error, now time.Time) {
	t.note(what, err, now, now.Add(span))
}

// Expire ends what was not noted again in time.
func (t *List) Expire(now time.Time) {
	over := func(tr *Trouble) bool { return !tr.until.IsZero() && now.After(tr.until) }
	for _, tr := range t.All() {
		if over(tr) {
			t.end(tr.What, now, over)
		}
	}
}

func (t *List) note(what string, err error, now, until time.Time) {
	err = transient.Plain(err)
	t.mu.Lock()
	i := t.index(what)
	begins := i < 0
	if begins {
		i = len(t.list)
		t.list = append(t.list, &Trouble{What: what, Since: now})
	}
	tr := *t.list[i] // others may be reading the old one
	tr.Err, tr.until = err, until
	say := now.Sub(tr.logged) >= time.Minute
	if say {
		tr.logged = now
	}
	t.list[i] = &tr
	t.mu.Unlock()
	if begins {
		t.report(what, err)
	}
	if say {
		t.log.Warn("not working, retrying: "+what, "since", tr.Since.UTC(), "error", err)
	}
}

// Mended says that what works.
func (t *List) Mended(what string, now time.Time) {
	t.end(what, now, func(*Trouble) bool { return true })
}

// end ends it if it still is over.
func (t *List) end(what string, now time.Time, over func(*Trouble) bool) {
	t.mu.Lock()
	i := t.index(what)
	if i < 0 || !over(t.list[i]) {
		t.mu.Unlock()
		return
	}
	was := t.list[i]
	t.list = slices.Delete(slices.Clone(t.list), i, i+1)
	t.mu.Unlock()
	t.report(what, nil)
	t.log.Info("working again: "+what, "after", now.Sub(was.Since).Round(time.Millisecond))
}

func (t *List) index(what string) int {
	return slices.IndexFunc(t.list, func(tr *Trouble) bool { return tr.What == what })
}

// All are those there are, the oldest first.
func (t *List) All() []*Trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

// Err joins them; nil when there are none.
func (t *List) Err() error {
	var errs []error
	for _, tr := range t.All() {
		errs = append(errs, tr)
	}
	return errors.Join(errs...)
}
