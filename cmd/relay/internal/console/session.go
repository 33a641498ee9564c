package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Role is what a session may do.
type Role string

// The roles. Whoever may operate may view.
const (
	View    Role = "view"
	Operate Role = "operate"
)

// may tells whether the role is enough for what needs another.
func (r Role) may(needs Role) bool { return needs == View || r == Operate }

const (
	codeLife    = time.Minute
	sessionLife = 12 * time.Hour
	// How many codes a role, and one asker of it, may get in the life of a code. A code that was given is never taken back for another
	// one: whoever may view could have all those of the operators go, by asking.
	maxCodes      = 32
	maxAskerCodes = 8
	maxSessions   = 128 // of a role
)

type session struct {
	role Role
	by   string
	seal Seal // of a code
	ends time.Time
	used bool // of a code: it counts until it ends, also when it is used up

	mu    sync.Mutex
	flash string // what the last act gave, for the next page
}

func (s *session) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flash = text
}

// said is the text once.
func (s *session) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.flash
	s.flash = ""
	return text
}

// Seal is the hash of a key that only the asker of a code has, and never sends: a code is good together with its key. So whoever reads the answer
// to somebody else's question cannot log in with it.
type Seal [sha256.Size]byte

// NewKey makes a key and its seal.
func NewKey() (key string, seal Seal) {
	key = rand.Text()
	return key, sha256.Sum256([]byte(key))
}

// keyMark is between a code and its key.
const keyMark = "-"

// WithKey is what is typed into the console.
func WithKey(code, key string) string { return code + keyMark + key }

// sessions are in memory alone: they end with the process.
type sessions struct {
	mu    sync.Mutex
	codes map[string]*session
	open  map[string]*session
}

func newSessions() *sessions {
	return &sessions{codes: make(map[string]*session), open: make(map[string]*session)}
}

// errTooManyCodes is for an asker, and for the log.
var errTooManyCodes = errors.New("too many codes were asked for")

// code makes one for whoever may have the role. It can be used once, for a minute. What others ask for in another role does not count.
func (s *sessions) code(role Role, by string, seal Seal, now time.Time) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inRole, ofAsker := 0, 0
	for key, c := range s.codes {
		switch {
		case !now.Before(c.ends):
			delete(s.codes, key)
		case c.role == role:
			inRole++
			if c.by == by {
				ofAsker++
			}
		}
	}
	switch {
	case ofAsker >= maxAskerCodes:
		return "", fmt.Errorf("%w: each user gets at most %d a minute; wait a minute", errTooManyCodes, maxAskerCodes)
	case inRole >= maxCodes:
		return "", fmt.Errorf("%w: the instance gives at most %d a minute to %s; wait a minute", errTooManyCodes, maxCodes, role)
	}
	c := rand.Text()
	s.codes[c] = &session{role: role, by: by, seal: seal, ends: now.Add(codeLife)}
	return c, nil
}

// login takes a code with its key and gives the secret of a session. A wrong key does not use the code up: it may be somebody else's try.
func (s *sessions) login(typed string, now time.Time) (secret string, ok bool) {
	code, key, _ := strings.Cut(strings.TrimSpace(typed), keyMark)
	seal := Seal(sha256.Sum256([]byte(key)))
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.codes[code]
	if c == nil || c.used || !now.Before(c.ends) || subtle.ConstantTimeCompare(seal[:], c.seal[:]) == 0 {
		return "", false
	}
	c.used = true
	s.room(c.role, now)
	secret = rand.Text() + rand.Text()
	s.open[secret] = &session{role: c.role, by: c.by, ends: now.Add(sessionLife)}
	return secret, true
}

func (s *sessions) get(secret string, now time.Time) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.open[secret]; have != nil && now.Before(have.ends) {
		return have
	}
	return nil
}

func (s *sessions) logout(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, secret)
}

// room removes the sessions that have ended and, while the role has too many, the oldest one of whoever has most of them.
func (s *sessions) room(role Role, now time.Time) {
	for {
		n, of := 0, map[string]int{}
		for key, o := range s.open {
			switch {
			case !now.Before(o.ends):
				delete(s.open, key)
			case o.role == role:
				n++
				of[o.by]++
			}
		}
		if n < maxSessions {
			return
		}
		var first string
		for key, o := range s.open {
			if o.role != role {
				continue
			}
			if f := s.open[first]; f == nil || of[o.by] > of[f.by] || of[o.by] == of[f.by] && o.ends.Before(f.ends) {
				first = key
			}
		}
		delete(s.open, first)
	}
}

// wrongCodes counts codes that were not good: the log has a line for the first, and at most one in wrongEvery for all others.
type wrongCodes struct {
	mu   sync.Mutex
	n    int
	said time.Time
}

const wrongEvery = 10 * time.Second

// more notes another one. It returns how many the log is to tell of now; 0: none.
func (w *wrongCodes) more(now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	if !w.said.IsZero() && now.Sub(w.said) < wrongEvery {
		return 0
	}
	n := w.n
	w.n, w.said = 0, now
	return n
}
