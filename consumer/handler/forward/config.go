package forward

import (
	"errors"

	"github.com/relaymq/relay/consumer/handler/internal/outbound"
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

// target is where the copies go.
func (c Config) target() outbound.Target { return outbound.Target{Subject: c.Subject, Allow: c.Allow} }

// Validate returns every fault, each beginning with the config name of its field.
func (c Config) Validate() error {
	return errors.Join(c.target().Validate(), outbound.ValidateForwarded(c.ForwardHeaders))
}

// Pattern is a pattern that every subject the handler may publish to matches, Allow aside: for the check that routes do not
// feed each other. It is > when the template is not valid.
func (c Config) Pattern() string { return c.target().Pattern() }
