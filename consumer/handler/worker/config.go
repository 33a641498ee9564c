package worker

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/process"
)

// Config is the worker handler of a route. Only Command is required.
type Config struct {
	// Command is the program and its arguments, as they stand: there is no shell, and nothing of a message goes in. A
	// name without a slash is looked up in relay's own PATH, a relative path from relay's working directory, once.
	Command []string `koanf:"command"`
	// Dir is the program's working directory. Empty means relay's.
	Dir string `koanf:"dir"`
	// Env is added to the environment that relay makes, and wins over PATH, LANG and TZ. It may not name RELAY_….
	Env map[string]string `koanf:"env"`
	// Per says what a process is for: pool (default), any message of the route; or key, the messages of one key, as its child.
	Per string `koanf:"per"`
	// Processes is how many there are with Per pool. Zero means 4.
	Processes int `koanf:"processes"`
	// InFlight is how many messages a process has at once. Zero means 1.
	InFlight int `koanf:"in_flight"`
	// Ready says that a process writes {"ready":true} before it takes messages.
	Ready bool `koanf:"ready"`
	// StartTimeout is how long it may take for that. Zero means 10s.
	StartTimeout time.Duration `koanf:"start_timeout"`
	// Grace is what a process gets to answer a message that was cancelled, and to leave when it is stopped, at most 600ms:
	// relay abandons a handler one second after its timeout. Zero means 500ms.
	Grace time.Duration `koanf:"grace"`
	// MaxResult is what is always taken as the result of a message: a line may have six times as much, and 64KiB more, since that
	// is what JSON makes of it at most. A longer line ends the process. Zero means 256KiB.
	MaxResult consumer.Bytes `koanf:"max_result"`
	// User is whom the program runs as: a name, name:group, uid or uid:gid. Empty means relay's own user; another one takes
	// a relay that runs as root. HOME, USER and LOGNAME are then set to that user's.
	User string `koanf:"user"`
	// Limits bound what each process may use.
	Limits Limits `koanf:"limits"`
}

// Limits bound what one process may use (setrlimit(2)).
type Limits = process.Limits

// What Config.Per may be.
const (
	PerPool = "pool"
	PerKey  = "key"
)

const (
	maxProcesses = 1024
	maxInFlight  = 1024
	maxMaxResult = 64 << 20
)

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Per = cmp.Or(c.Per, PerPool)
	if c.Per == PerPool {
		c.Processes = cmp.Or(c.Processes, 4)
	}
	c.InFlight = cmp.Or(c.InFlight, 1)
	c.StartTimeout = cmp.Or(c.StartTimeout, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, process.DefaultGrace)
	c.MaxResult = cmp.Or(c.MaxResult, 256<<10)
	return c
}

// Validate returns every fault, each beginning with the config name of its field. It does not look at the file system:
// [New] does. Values of Env may be secrets and are not repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := append(c.process().Faults(), process.GraceFault(c.Grace))
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.Per != PerPool && c.Per != PerKey:
		fault("per: must be pool or key (got %q)", c.Per)
	case c.Per == PerKey && c.Processes != 0:
		fault("processes: is for per: pool only; with per: key each key has one process, and supervisor.max_children bounds their number")
	case c.Per == PerPool && (c.Processes < 1 || c.Processes > maxProcesses):
		fault("processes: must be 1 to %d (got %d)", maxProcesses, c.Processes)
	}
	if c.InFlight < 1 || c.InFlight > maxInFlight {
		fault("in_flight: must be 1 to %d (got %d)", maxInFlight, c.InFlight)
	}
	if c.StartTimeout < 0 {
		fault("start_timeout: must be above 0 (got %v)", c.StartTimeout)
	}
	if c.MaxResult < 0 || c.MaxResult > maxMaxResult {
		fault("max_result: must be above 0 and at most 64MiB (got %v)", c.MaxResult)
	}
	return errors.Join(errs...)
}

func (c Config) process() process.Config {
	return process.Config{Command: c.Command, Dir: c.Dir, Env: c.Env, User: c.User, Limits: c.Limits}
}

// Concurrency is how many messages of a route with a pool may be on their way at once. More than the processes take would wait for
// one of them, with their timeout running; a few more are at hand when a process has answered.
func (c Config) Concurrency() int {
	c = c.WithDefaults()
	places := c.Processes * c.InFlight
	return places + places/4 + 2
}
