// Package outbound is what handlers share that send each message to a subject made of its own: where it may go, and which of its headers go
// with it. The packages of the handlers say what is refused, and why.
package outbound

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/internal/subject"
)

// Target is where a configuration sends messages.
type Target struct {
	Subject string   // a template over the subject of the message
	Allow   []string // patterns of the only subjects to send to; empty: all that the template can give
}

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Validate returns every fault, each beginning with the config name of its field: subject or allow.
func (t Target) Validate() error {
	errs := []error{t.validateSubject()}
	for i, p := range t.Allow {
		switch err := subject.ValidatePattern(p); {
		case err != nil:
			errs = append(errs, fmt.Errorf("allow[%d]: %w", i, err))
		case subject.ServersOwn(p):
			errs = append(errs, fmt.Errorf("allow[%d]: %q belongs to the server, and relay sends no message there", i, p))
		}
	}
	if len(t.Allow) > 0 && !slices.ContainsFunc(t.Allow, t.gives) {
		errs = append(errs, fmt.Errorf("allow: no pattern matches a subject that %q can produce", t.Subject))
	}
	return errors.Join(errs...)
}

func (t Target) validateSubject() error {
	if t.Subject == "" {
		return errors.New("subject: is required")
	}
	if _, err := subject.ParseTemplate(t.Subject); err != nil {
		return fmt.Errorf("subject: %w", err)
	}
	if t.Subject == "{subject}" {
		return errors.New("subject: {subject} alone sends every message back to the stream that it came from")
	}
	// With a plain token in place of each placeholder, what is left to be wrong is wrong for every message.
	if err := subject.ValidateLiteral(placeholder.ReplaceAllString(t.Subject, "x")); err != nil {
		return fmt.Errorf("subject: %w (with x for each placeholder)", err)
	}
	if first, _, _ := strings.Cut(t.Subject, "."); strings.Contains(first, "{") && len(t.Allow) == 0 {
		return fmt.Errorf("subject: the first token of %q comes from the message, so that its publisher chooses where the message goes: begin with a fixed token, or list the allowed subjects in allow", t.Subject)
	}
	return nil
}

// Pattern is a pattern that every subject of the template matches, Allow aside. It is > when the template is not valid.
func (t Target) Pattern() string {
	template, err := subject.ParseTemplate(t.Subject)
	if err != nil {
		return ">"
	}
	return template.Pattern()
}

// Patterns are those of all subjects that messages may go to, for questions about their streams.
func (t Target) Patterns() []string {
	if t.IsFixed() || len(t.Allow) == 0 {
		return []string{t.Pattern()}
	}
	return slices.DeleteFunc(slices.Clone(t.Allow), func(p string) bool { return !t.gives(p) })
}

// IsFixed tells whether all messages go to the same subject.
func (t Target) IsFixed() bool { return !strings.Contains(t.Subject, "{") }

// gives tells whether the template can give a subject that matches p.
func (t Target) gives(p string) bool { return subject.Overlaps(p, t.Pattern()) }

// Way finds the subject of each message. It is safe for concurrent use.
type Way struct {
	template subject.Template
	allow    []string
	own      []string
}

// Way is for a target that is valid. Own are patterns of subjects to which nothing is sent, whatever the configuration says: relay's own.
func (t Target) Way(own []string) (Way, error) {
	template, err := subject.ParseTemplate(t.Subject)
	return Way{template, t.Allow, own}, err
}

// Of is where a message of that subject goes. The error says why it may not.
func (w Way) Of(from string) (to string, err error) {
	if to, err = w.template.Expand(from); err != nil {
		return "", err
	}
	if err := subject.ValidateLiteral(to); err != nil {
		return "", err
	}
	for _, p := range w.own {
		if subject.Matches(p, to) {
			return "", fmt.Errorf("%q is one of relay's own subjects (%s)", to, p)
		}
	}
	if len(w.allow) > 0 && !slices.ContainsFunc(w.allow, func(p string) bool { return subject.Matches(p, to) }) {
		return "", fmt.Errorf("%q is not among the subjects in allow", to)
	}
	return to, nil
}

// ValidateForwarded returns every fault of a forward_headers list.
func ValidateForwarded(entries []string) error {
	var errs []error
	for i, entry := range entries {
		switch name, isPrefix := headerlist.Split(entry); {
		case !ValidName(name) && !(isPrefix && name == ""):
			errs = append(errs, fmt.Errorf("forward_headers[%d]: %q is not a header name, nor the beginning of a header name with * at its end", i, entry))
		case IsReserved(name):
			errs = append(errs, fmt.Errorf("forward_headers[%d]: %s may not be copied from a message", i, entry))
		}
	}
	return errors.Join(errs...)
}

// CopyHeaders copies the headers of the list. It leaves out those that are reserved, which would have their effect a second time: roll up the
// target, expire the copy, expect a sequence.
func CopyHeaders(to, from nats.Header, list headerlist.List) {
	if list.Empty() {
		return
	}
	for name, values := range from {
		if list.Has(name) && !IsReserved(name) {
			to[name] = values
		}
	}
}

// IsReserved tells whether the server or relay would act on a header, or whoever gets it may take it for their word.
func IsReserved(name string) bool {
	return hasPrefixFold(name, "Nats-") || hasPrefixFold(name, "Relay-")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// ValidName tells whether NATS can carry a header of that name.
func ValidName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' || r == '*' })
}
