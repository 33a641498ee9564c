package exec

import (
	"strings"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/internal/process"
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
	Lint:     func(c Config, r handler.Report) { process.Lint(c.process(), r) },
})
