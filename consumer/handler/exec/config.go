package exec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Config is the exec handler of a route. Only Command is required.
type Config struct {
	// Command is the program and its arguments, as they stand: there is no shell, and nothing of a message goes in. A
	// name without a slash is looked up in relay's own PATH, a relative path from relay's working directory, once.
	Command []string `koanf:"command"`
	// Dir is the program's working directory. Empty means relay's.
	Dir string `koanf:"dir"`
	// Env is added to the environment that relay makes, and wins over PATH, LANG and TZ. It may not name RELAY_….
	Env map[string]string `koanf:"env"`
	// Grace is what a program gets between SIGTERM and SIGKILL when its time is over, at most 600ms: relay abandons a
	// handler one second after its timeout. Zero means 500ms.
	Grace time.Duration `koanf:"grace"`
	// User is whom the program runs as: a name, name:group, uid or uid:gid. Empty means relay's own user; another one takes
	// a relay that runs as root. HOME, USER and LOGNAME are then set to that user's.
	User string `koanf:"user"`
	// Limits bound what the program may use.
	Limits Limits `koanf:"limits"`
}

// maxGrace leaves 400ms of the second after which a handler is abandoned for the kill itself.
const maxGrace = 600 * time.Millisecond

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Grace = cmp.Or(c.Grace, 500*time.Millisecond)
	return c
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Validate returns every fault, each beginning with the config name of its field. It does not look at the file system:
// [New] does. Values of Env may be secrets and are not repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Command) == 0 || c.Command[0] == "" {
		fault("command: is required, as a list of the program and its arguments")
	}
	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			fault("command[%d]: holds a NUL byte", i)
		}
	}
	if strings.ContainsRune(c.Dir, 0) {
		fault("dir: holds a NUL byte")
	}
	names := slices.Sorted(maps.Keys(c.Env))
	for _, name := range names {
		switch {
		case !envName.MatchString(name):
			fault("env: %q is not a variable name", name)
		case strings.HasPrefix(name, "RELAY_"):
			fault("env: %s: names with RELAY_ are relay's own", name)
		case strings.ContainsRune(c.Env[name], 0):
			fault("env: the value of %s holds a NUL byte", name)
		}
	}
	if c.Grace < 0 || c.Grace > maxGrace {
		fault("grace: must be above 0 and at most %v (got %v)", maxGrace, c.Grace)
	}
	return errors.Join(append(errs, c.Limits.validate()...)...)
}
