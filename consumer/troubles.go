package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/away"
)

// troubles are what relay, or a route, waits for just now: each with the reason and since when. The log has a line when one
// begins, one a minute while it lasts, and one when it is over.
type troubles struct {
	log *slog.Logger
	// report is told when one begins, and when it is over: then err is nil.
	report func(what string, err error)

	mu   sync.Mutex
	list []*trouble
}

type trouble struct {
	what   string
	err    error
	since  time.Time
	logged time.Time
}

// Error names what is in trouble, unless the reason does so itself.
func (t *trouble) Error() string {
	text := t.err.Error()
	if !strings.Contains(text, t.what) {
		text = t.what + ": " + text
	}
	return fmt.Sprintf("%s (since %s)", text, t.since.UTC().Format(time.RFC3339))
}

func (t *trouble) Unwrap() error { return t.err }

// passes tells whether it may be over by itself.
func (t *trouble) passes() bool { return away.Is(t.err) }

// note says that what does not work, and that it is tried again.
func (t *troubles) note(what string, err error, now time.Time) {
	err = away.Plain(err)
	t.mu.Lock()
	i := t.index(what)
	begins := i < 0
	if begins {
		i = len(t.list)
		t.list = append(t.list, &trouble{what: what, since: now})
	}
	tr := *t.list[i] // others may be reading the old one
	tr.err = err
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
		t.log.Warn("not working, retrying: "+what, "since", tr.since.UTC(), "error", err)
	}
}

// mended says that what works.
func (t *troubles) mended(what string, now time.Time) {
	t.mu.Lock()
	i := t.index(what)
	if i < 0 {
		t.mu.Unlock()
		return
	}
	was := t.list[i]
	t.list = slices.Delete(slices.Clone(t.list), i, i+1)
	t.mu.Unlock()
	t.report(what, nil)
	t.log.Info("working again: "+what, "after", now.Sub(was.since).Round(time.Millisecond))
}

func (t *troubles) index(what string) int {
	return slices.IndexFunc(t.list, func(tr *trouble) bool { return tr.what == what })
}

// all are those there are, the oldest first.
func (t *troubles) all() []*trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

// err joins them; nil when there are none.
func (t *troubles) err() error {
	var errs []error
	for _, tr := range t.all() {
		errs = append(errs, tr)
	}
	return errors.Join(errs...)
}
