package forward

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/internal/subject"
)

// Config is the forward handler of a route. Only Subject is required.
type Config struct {
	// Subject is where the copies go, as a template over the original subject: {1} is its first token, {subject} all of
	// it. With a placeholder in its first token whoever publishes chooses where the copy goes, and Allow is required.
	Subject string `koanf:"subject"`
	// Allow lists patterns of the only subjects to publish to. Empty means all that Subject can give. A message whose copy
	// would go elsewhere is dead.
	Allow []string `koanf:"allow"`
	// ForwardHeaders are the names of message headers to copy, in any case, beginnings of names such as ce-*, or *. None by
	// default. Those that begin with Nats- or Relay- are never copied.
	ForwardHeaders []string `koanf:"forward_headers"`
}

// WithDefaults returns c: nothing has a default.
func (c Config) WithDefaults() Config { return c }

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Validate returns every fault, each beginning with the config name of its field.
func (c Config) Validate() error {
	errs := []error{c.validateSubject()}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, p := range c.Allow {
		switch err := subject.ValidatePattern(p); {
		case err != nil:
			fault("allow[%d]: %w", i, err)
		case subject.ServersOwn(p):
			fault("allow[%d]: %q belongs to the server, and relay forwards nothing to it", i, p)
		}
	}
	if pattern := c.Pattern(); len(c.Allow) > 0 && !slices.ContainsFunc(c.Allow, func(p string) bool { return subject.Overlaps(p, pattern) }) {
		fault("allow: no pattern matches a subject that %q can produce", c.Subject)
	}
	for i, entry := range c.ForwardHeaders {
		switch name, isPrefix := headerlist.Split(entry); {
		case name == "" && !isPrefix, strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' || r == '*' }):
			fault("forward_headers[%d]: %q is not a header name, nor the beginning of a header name with * at its end", i, entry)
		case neverCopied(name):
			fault("forward_headers[%d]: %s may not be copied from a message", i, entry)
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateSubject() error {
	if c.Subject == "" {
		return errors.New("subject: is required")
	}
	if _, err := subject.ParseTemplate(c.Subject); err != nil {
		return fmt.Errorf("subject: %w", err)
	}
	if c.Subject == "{subject}" {
		return errors.New("subject: {subject} alone forwards every message to itself")
	}
	// With a plain token in place of each placeholder, what is left to be wrong is wrong for every message.
	if err := subject.ValidateLiteral(placeholder.ReplaceAllString(c.Subject, "x")); err != nil {
		return fmt.Errorf("subject: %w (with x for each placeholder)", err)
	}
	if first, _, _ := strings.Cut(c.Subject, "."); strings.Contains(first, "{") && len(c.Allow) == 0 {
		return fmt.Errorf("subject: the first token of %q comes from the message, so that its publisher chooses where the message goes: begin with a fixed token, or list the allowed subjects in allow", c.Subject)
	}
	return nil
}

// Pattern is a pattern that every subject the handler may publish to matches, Allow aside: for the check that routes do not
// feed each other. It is > when the template is not valid.
func (c Config) Pattern() string {
	t, err := subject.ParseTemplate(c.Subject)
	if err != nil {
		return ">"
	}
	return t.Pattern()
}
