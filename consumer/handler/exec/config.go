package exec

import (
	"cmp"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/process"
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

// Limits bound what one program may use (setrlimit(2)).
type Limits = process.Limits

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Grace = cmp.Or(c.Grace, process.DefaultGrace)
	return c
}

// Validate returns every fault, each beginning with the config name of its field. It does not look at the file system:
// [New] does. Values of Env may be secrets and are not repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	return errors.Join(append(c.process().Faults(), process.GraceFault(c.Grace))...)
}

func (c Config) process() process.Config {
	return process.Config{Command: c.Command, Dir: c.Dir, Env: c.Env, User: c.User, Limits: c.Limits}
}
