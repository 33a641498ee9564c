package request

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/consumer/handler/internal/status"
	"github.com/relaymq/relay/internal/subject"
)

// Config is the request handler of a route. Only Subject is required.
type Config struct {
	// Subject is where the requests go, as a template over the message's subject: {1} is its first token, {subject} all of
	// it. With a placeholder in its first token whoever publishes chooses where the request goes, and Allow is required.
	Subject string `koanf:"subject"`
	// Allow lists patterns of the only subjects for requests. Empty means all that Subject can give. A message whose request
	// would go elsewhere is dead.
	Allow []string `koanf:"allow"`
	// Headers are sent with every request, and win over forwarded ones.
	Headers map[string]string `koanf:"headers"`
	// ForwardHeaders are the names of message headers to copy, in any case, beginnings of names such as ce-*, or *. None by
	// default. Those that begin with Nats- or Relay- are never copied.
	ForwardHeaders []string `koanf:"forward_headers"`
	// Ack lists the error codes of a service that acknowledge the message nevertheless, as numbers and ranges: 409 of one that has
	// done it before. "none", the default, is an empty list.
	Ack string `koanf:"ack"`
	// Dead lists the error codes that say the message can never be handled. Empty means "400,410,413,414,415,422,431"; "none" is an
	// empty list. A code of the default list that Ack names too is an ack.
	Dead string `koanf:"dead"`
}

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Ack = cmp.Or(c.Ack, "none")
	c.Dead = cmp.Or(c.Dead, status.DefaultDead)
	return c
}

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Validate returns every fault, each beginning with the config name of its field. Values of Headers may be secrets and are not
// repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{c.validateSubject()}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, p := range c.Allow {
		switch err := subject.ValidatePattern(p); {
		case err != nil:
			fault("allow[%d]: %w", i, err)
		case subject.ServersOwn(p):
			fault("allow[%d]: %q belongs to the server, and relay sends no request to it", i, p)
		}
	}
	if pattern := c.Pattern(); len(c.Allow) > 0 && !slices.ContainsFunc(c.Allow, func(p string) bool { return subject.Overlaps(p, pattern) }) {
		fault("allow: no pattern matches a subject that %q can produce", c.Subject)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case !validName(name):
			fault("headers: %q is not a header name", name)
		case ownHeader(name):
			fault("headers: %s is relay's or the server's own", name)
		case strings.ContainsAny(c.Headers[name], "\r\n\x00"):
			fault("headers: the value of %s holds a control byte", name)
		}
	}
	for i, entry := range c.ForwardHeaders {
		switch name, isPrefix := headerlist.Split(entry); {
		case !validName(name) && !(isPrefix && name == ""):
			fault("forward_headers[%d]: %q is not a header name, nor the beginning of a header name with * at its end", i, entry)
		case ownHeader(name):
			fault("forward_headers[%d]: %s may not be copied from a message", i, entry)
		}
	}
	ack, err := status.Parse(c.Ack)
	if err != nil {
		fault("ack: %w", err)
	}
	dead, err := status.Parse(c.Dead)
	if err != nil {
		fault("dead: %w", err)
	}
	if both := ack.Common(dead); len(both) > 0 && c.Dead != status.DefaultDead {
		fault("dead: %d is also in ack: remove it from one of them", both[0])
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
		return errors.New("subject: {subject} alone asks the stream that the message came from")
	}
	// With a plain token in place of each placeholder, what is left to be wrong is wrong for every message.
	if err := subject.ValidateLiteral(placeholder.ReplaceAllString(c.Subject, "x")); err != nil {
		return fmt.Errorf("subject: %w (with x for each placeholder)", err)
	}
	if first, _, _ := strings.Cut(c.Subject, "."); strings.Contains(first, "{") && len(c.Allow) == 0 {
		return fmt.Errorf("subject: the first token of %q comes from the message, so that its publisher chooses who gets the request: begin with a fixed token, or list the allowed subjects in allow", c.Subject)
	}
	return nil
}

// Pattern is a pattern that every subject the handler may ask at matches, Allow aside. It is > when the template is not valid.
func (c Config) Pattern() string {
	t, err := subject.ParseTemplate(c.Subject)
	if err != nil {
		return ">"
	}
	return t.Pattern()
}

// ownHeader tells whether the server or relay would act on a header, or whoever gets it may take it for their word.
func ownHeader(name string) bool {
	return hasPrefixFold(name, "Nats-") || hasPrefixFold(name, "Relay-")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' || r == '*' })
}
