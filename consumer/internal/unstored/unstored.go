// Package unstored keeps messages of a route whose outcome cannot be stored. The outcome must be stored before relay gives a message back. While the
// server does not store it, the message stays here, the session extends its lease, and it is tried again. Such messages wait in a list and not on the slow
// paths, where they would stand in the way of others: a dead letter needs no bucket of attempts, and a parked message carries its attempts itself.
package unstored

import (
	"log/slog"
	"sync"
	"time"
)

// Every is how often it is tried again.
const Every = time.Second

// sayEvery is how often the log says how many there are.
const sayEvery = time.Minute

// List are those of a route. Its methods are for all goroutines.
type List struct {
	mu     sync.Mutex
	list   []entry
	ended  bool
	parked int // failures that were parked because they could not be recorded, since the log said so
	said   time.Time
	err    error // the latest reason
}

type entry struct {
	at  time.Time
	try func()
}

// Add keeps a message until then. Try settles it, or adds it again. After End it returns false: the message is not kept.
func (l *List) Add(at time.Time, why error, try func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.list, l.err = append(l.list, entry{at, try}), why
	return true
}

// Parked notes a message that was parked instead, and why its attempt could not be recorded.
func (l *List) Parked(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked++
	l.err = why
}

// Take removes those whose time has come, and returns what is to be tried.
func (l *List) Take(now time.Time) (due []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.list[:0]
	for _, e := range l.list {
		if e.at.After(now) {
			rest = append(rest, e)
		} else {
			due = append(due, e.try)
		}
	}
	clear(l.list[len(rest):])
	l.list = rest
	return due
}

// End removes all, and returns what is to be tried a last time. Nothing is kept any more.
func (l *List) End() (all []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.list {
		all = append(all, e.try)
	}
	l.list, l.ended = nil, true
	return all
}

// Len is how many there are.
func (l *List) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// Say has the log say, once a minute, how many there are.
func (l *List) Say(now time.Time, log *slog.Logger) {
	l.mu.Lock()
	n, parked, err := len(l.list), l.parked, l.err
	quiet := n+parked == 0 || now.Sub(l.said) < sayEvery
	if !quiet {
		l.parked, l.said = 0, now
	}
	l.mu.Unlock()
	if !quiet {
		log.Error("cannot store the outcome of messages; they are held in memory or parked; retrying", "held", n, "parked", parked, "error", err)
	}
}
