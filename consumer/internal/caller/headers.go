// Package caller is relay's side of whoever published a message and may still want its result: what the headers of the message
// ask for, whether they may, the question whether it is still wanted, and the reply.
//
//	headers.go  Read: deadline, interest and reply subject of a message, as far as the route permits
//	line.go     Line: one subscription on which the answers to all questions and replies of a process arrive
//	ask.go      Line.Ask: is this still wanted?
//	reply.go    Reply: the outcome, as a message; Holding: the messages that wait until their callers are told
//	tell.go     Line.Tell: the reply, and whether anybody was there to take it
//
// What a message asks for was written by a stranger. A header counts only when it is there once, and a subject only when the route
// permits it and it is neither the server's nor relay's.
package caller

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/subject"
)

// The headers that a publisher may set. Names are read in any case.
const (
	HeaderDeadline  = "Relay-Deadline"   // RFC 3339
	HeaderExpiresIn = "Relay-Expires-In" // a Go duration, from when the stream stored the message
	HeaderInterest  = "Relay-Interest"
	HeaderReplyTo   = "Relay-Reply-To"
	HeaderConfirm   = "Relay-Confirm" // true: the caller answers the reply
)

// What relay says, and what it understands.
const (
	HeaderID         = "Relay-Id"
	HeaderSubject    = "Relay-Subject"
	HeaderInterested = "Relay-Interested" // of an answer: no
	HeaderOutcome    = "Relay-Outcome"
	HeaderAttempts   = "Relay-Attempts"
	HeaderError      = "Relay-Error"
	HeaderTruncated  = "Relay-Result-Truncated"
)

// Call is what a message says of its caller. Zero fields are not asked for.
type Call struct {
	Deadline time.Time
	Interest string
	ReplyTo  string
	Confirm  bool
}

// Policy is what the callers of a route may ask for.
type Policy struct {
	// Reply and Interest are patterns of the subjects that are permitted.
	Reply, Interest []string
	// Own are the beginnings of subjects that are relay's.
	Own []string
}

// Refusal is a header that does not count. The message is handled as if it were not there.
type Refusal struct {
	Header string
	Err    error
}

// maxValue bounds a value that is looked at. No time and no duration that anybody means is longer; subjects have their own bound.
const (
	maxValue   = 64
	maxSubject = 512
)

// Read finds what the headers of a message ask for; nil when that is nothing. stored is when its stream stored it.
func (p *Policy) Read(h nats.Header, stored time.Time) (*Call, []Refusal) {
	var v [len(names)][]string // the values, by name
	found := false
	for name, values := range h {
		if i := index(name); i >= 0 {
			v[i], found = append(v[i], values...), true
		}
	}
	if !found {
		return nil, nil
	}
	var c Call
	var refused []Refusal
	for i, values := range v {
		if len(values) == 0 {
			continue
		}
		err := errors.New("is given more than once")
		if len(values) == 1 {
			err = c.set(p, i, values[0], stored)
		}
		if err != nil {
			refused = append(refused, Refusal{names[i], err})
		}
	}
	if c == (Call{}) {
		return nil, refused
	}
	return &c, refused
}

var names = [...]string{HeaderDeadline, HeaderExpiresIn, HeaderInterest, HeaderReplyTo, HeaderConfirm}

// index is the place of a header in names, or -1. It is called for every header of every message.
func index(name string) int {
	if len(name) < len(HeaderConfirm) || len(name) > len(HeaderExpiresIn) || name[0]|0x20 != 'r' {
		return -1
	}
	for i, n := range names {
		if len(n) == len(name) && strings.EqualFold(n, name) {
			return i
		}
	}
	return -1
}

func (c *Call) set(p *Policy, i int, value string, stored time.Time) (err error) {
	switch names[i] {
	case HeaderDeadline:
		var t time.Time
		if len(value) > maxValue {
			return fmt.Errorf("has %d bytes", len(value))
		}
		if t, err = time.Parse(time.RFC3339Nano, value); err != nil {
			return fmt.Errorf("%q is not an RFC 3339 time", value)
		}
		c.until(t)
	case HeaderExpiresIn:
		if len(value) > maxValue {
			return fmt.Errorf("has %d bytes", len(value))
		}
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fmt.Errorf("%q is not a duration such as 30s", value)
		}
		c.until(stored.Add(d))
	case HeaderInterest:
		if err = p.permits(value, p.Interest); err == nil {
			c.Interest = value
		}
	case HeaderConfirm:
		if c.Confirm = strings.EqualFold(value, "true"); !c.Confirm && !strings.EqualFold(value, "false") {
			return fmt.Errorf("%q is neither true nor false", cut(value))
		}
	case HeaderReplyTo:
		if err = p.permits(value, p.Reply); err == nil {
			c.ReplyTo = value
		}
	}
	return err
}

func cut(s string) string { return s[:min(len(s), maxValue)] }

// until keeps the earlier deadline.
func (c *Call) until(t time.Time) {
	if c.Deadline.IsZero() || t.Before(c.Deadline) {
		c.Deadline = t
	}
}

// permits says why relay does not publish to a subject that a stranger named.
func (p *Policy) permits(s string, permitted []string) error {
	if len(s) > maxSubject {
		return fmt.Errorf("subject of %d bytes is longer than %d", len(s), maxSubject)
	}
	if err := subject.ValidatePattern(s); err != nil {
		return err
	}
	switch {
	case strings.ContainsAny(s, "*>"):
		return fmt.Errorf("%q holds a wildcard", s)
	case strings.HasPrefix(s, "$") || strings.HasPrefix(s, "_R_") || strings.HasPrefix(s, "_GR_"):
		return fmt.Errorf("%q belongs to the server", s)
	}
	for _, own := range p.Own {
		if own != "" && (s == own || strings.HasPrefix(s, own+".")) {
			return fmt.Errorf("%q is a subject of relay itself", s)
		}
	}
	for _, pattern := range permitted {
		if subject.Matches(pattern, s) {
			return nil
		}
	}
	if len(permitted) == 0 {
		return errors.New("the route permits no such subjects")
	}
	return fmt.Errorf("%q is not permitted by the route", s)
}
