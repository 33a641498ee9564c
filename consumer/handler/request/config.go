package request

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler/internal/outbound"
	"github.com/relaymq/relay/consumer/handler/internal/status"
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

// target is where the requests go.
func (c Config) target() outbound.Target { return outbound.Target{Subject: c.Subject, Allow: c.Allow} }

// Validate returns every fault, each beginning with the config name of its field. Values of Headers may be secrets and are not
// repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{c.target().Validate()}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case !outbound.ValidName(name):
			fault("headers: %q is not a header name", name)
		case outbound.IsReserved(name):
			fault("headers: %s is relay's or the server's own", name)
		case strings.ContainsAny(c.Headers[name], "\r\n\x00"):
			fault("headers: the value of %s holds a control byte", name)
		}
	}
	errs = append(errs, outbound.ValidateForwarded(c.ForwardHeaders))
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

// Pattern is a pattern that every subject the handler may ask at matches, Allow aside. It is > when the template is not valid.
func (c Config) Pattern() string { return c.target().Pattern() }
