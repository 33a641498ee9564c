package process

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Config is what the handlers that run programs have in common.
type Config struct {
	Command []string
	Dir     string
	Env     map[string]string
	User    string
	Limits  Limits
}

// MaxGrace is the longest grace of a program whose time is over: it leaves 400ms, of the second after which a handler is
// abandoned, for the kill itself.
const MaxGrace = 600 * time.Millisecond

// DefaultGrace is the grace of a config that says nothing.
const DefaultGrace = 500 * time.Millisecond

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Faults are what is wrong, each beginning with the config name of its field. The file system is not looked at: [New] does.
// Values of Env may be secrets and are not repeated.
func (c Config) Faults() (errs []error) {
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
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		switch {
		case !envName.MatchString(name):
			fault("env: %q is not a variable name", name)
		case strings.HasPrefix(name, "RELAY_"):
			fault("env: %s: names with RELAY_ are relay's own", name)
		case strings.ContainsRune(c.Env[name], 0):
			fault("env: the value of %s holds a NUL byte", name)
		}
	}
	return append(errs, c.Limits.faults()...)
}

// GraceFault is what is wrong with a grace, or nil.
func GraceFault(grace time.Duration) error {
	if grace < 0 || grace > MaxGrace {
		return fmt.Errorf("grace: must be above 0 and at most %v (got %v)", MaxGrace, grace)
	}
	return nil
}
