package forward

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/relaymq/relay/internal/subject"
)

// Config is the forward handler of a route.
type Config struct {
	// Subject is where the copies go, as a template over the original subject: {1} is its first token, {subject} all of
	// it. Required.
	Subject string `koanf:"subject"`
}

// WithDefaults returns c: nothing has a default.
func (c Config) WithDefaults() Config { return c }

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Validate returns every fault, each beginning with the config name of its field.
func (c Config) Validate() error {
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
	return nil
}

// Pattern is a pattern that every subject the handler may publish to matches: for the check that routes do not feed each
// other. It is > when the template is not valid.
func (c Config) Pattern() string {
	t, err := subject.ParseTemplate(c.Subject)
	if err != nil {
		return ">"
	}
	return t.Pattern()
}
