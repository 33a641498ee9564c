package console

import (
	"crypto/rand"
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
	maxCodes    = 32
	maxSessions = 256
)

type session struct {
	role Role
	by   string
	ends time.Time

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

// sessions are in memory alone: they end with the process.
type sessions struct {
	mu    sync.Mutex
	codes map[string]*session
	open  map[string]*session
}

func newSessions() *sessions {
	return &sessions{codes: make(map[string]*session), open: make(map[string]*session)}
}

// code makes one for whoever may have the role. It can be used once, for a minute.
func (s *sessions) code(role Role, by string, now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	tidy(s.codes, maxCodes, now)
	c := rand.Text()
	s.codes[c] = &session{role: role, by: by, ends: now.Add(codeLife)}
	return c
}

// login takes a code and gives the secret of a session.
func (s *sessions) login(code string, now time.Time) (secret string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.codes[code]
	delete(s.codes, code)
	if c == nil || now.After(c.ends) {
		return "", false
	}
	tidy(s.open, maxSessions, now)
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

// tidy removes what has ended and, while there are too many, what ends first.
func tidy(m map[string]*session, most int, now time.Time) {
	for len(m) > 0 {
		var first string
		for key, s := range m {
			if first == "" || s.ends.Before(m[first].ends) {
				first = key
			}
		}
		if len(m) < most && now.Before(m[first].ends) {
			return
		}
		delete(m, first)
	}
}
