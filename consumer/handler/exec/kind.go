package exec

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: {exec: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "exec",
	Docs: map[string]handler.Doc{
		"":                 {Text: "a program for each message, which gets the body on stdin"},
		"command":          {Text: "the program and its arguments, without a shell"},
		"dir":              {Text: "its working directory; empty: relay's"},
		"env":              {Text: "added to its environment, each a text or {file: path}; shown nowhere"},
		"grace":            {Text: "time between SIGTERM and SIGKILL, at most 600ms"},
		"user":             {Text: "whom it runs as: name, name:group, uid or uid:gid; another user than relay's needs root; empty: relay's"},
		"limits":           {Text: "what one program may use, set before it begins"},
		"limits.memory":    {Text: "address space, such as 1GiB; 0: no bound"},
		"limits.cpu":       {Text: "processor time, in whole seconds; 0s: no bound"},
		"limits.processes": {Text: "processes and threads of its user, who is not root; 0: no bound"},
		"limits.files":     {Text: "open files, at least 3; 0: no bound"},
	},
	Build: func(c Config, _ handler.Env, rt *consumer.Route) (err error) {
		rt.Handler, err = New(c)
		return err
	},
	Describe: func(c Config) string { return strings.Join(c.Command, " ") },
	Lint:     lint,
})

// lint looks for the program as exec will. Lint often runs on another machine, so that its absence is no fault.
func lint(c Config, r handler.Report) {
	if len(c.Command) == 0 {
		return
	}
	name := c.Command[0]
	if c.Dir != "" && strings.Contains(name, "/") && !strings.HasPrefix(name, "/") {
		return // relative to a directory that may be elsewhere
	}
	if _, err := exec.LookPath(name); err != nil {
		if e := (*exec.Error)(nil); errors.As(err, &e) {
			err = e.Err // which does not repeat the name
		}
		if e := (*fs.PathError)(nil); errors.As(err, &e) {
			err = e.Err
		}
		r.Warn("command", "the program %q is not on this machine (%v): relay run needs it", name, err)
	}
}
