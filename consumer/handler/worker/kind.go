package worker

import (
	"fmt"
	"strings"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/internal/process"
)

// Kind is handler: {worker: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "worker",
	Docs: map[string]handler.Doc{
		"":                 {Text: "a program that lives on and takes messages as lines of JSON"},
		"command":          {Text: "the program and its arguments, without a shell"},
		"dir":              {Text: "its working directory; empty: relay's"},
		"env":              {Text: "added to its environment, each a text or {file: path}; shown nowhere"},
		"per":              {Text: "a process takes any message (pool), or those of one key (key)", Values: []string{PerPool, PerKey}},
		"processes":        {Text: "number of processes, with per: pool; the route runs up to a quarter more handlers (2 at most), so that no process is idle"},
		"in_flight":        {Text: "messages that a process has at once"},
		"ready":            {Text: "a process begins with a line {\"ready\":true}"},
		"start_timeout":    {Text: "how long that may take"},
		"grace":            {Text: "time to answer a message that was cancelled, and to exit, at most 600ms"},
		"max_result":       {Text: "largest result that is always accepted; a line of more than six times this size and 64KiB ends the process"},
		"user":             {Text: "whom it runs as: name, name:group, uid or uid:gid; another user than relay's needs root; empty: relay's"},
		"limits":           {Text: "what one process may use, set before it begins"},
		"limits.memory":    {Text: "address space, such as 1GiB; 0: no bound"},
		"limits.cpu":       {Text: "processor time of a process in all its life, in whole seconds; 0s: no bound"},
		"limits.processes": {Text: "processes and threads of its user, who is not root; 0: no bound"},
		"limits.files":     {Text: "open files, at least 3; 0: no bound"},
	},
	Build: func(c Config, env handler.Env, rt *consumer.Route) error {
		log := env.Logger.With("route", rt.Name)
		if c.Per == PerKey {
			keys, err := NewKeys(c, log)
			if err != nil {
				return err
			}
			rt.Factory, rt.Check, rt.Outside = keys.New, keys.Check, true
			return nil
		}
		h, err := New(c, log)
		if err != nil {
			return err
		}
		rt.Handler, rt.Concurrency = h, min(rt.WithDefaults().Concurrency, c.Concurrency())
		return nil
	},
	Describe: func(c Config) string {
		c = c.WithDefaults()
		if c.Per == PerKey {
			return strings.Join(c.Command, " ") + ", a process for each key"
		}
		return fmt.Sprintf("%s, %d processes", strings.Join(c.Command, " "), c.Processes)
	},
	Lint: func(c Config, r handler.Report) {
		process.Lint(c.process(), r)
		if !c.Ready {
			r.Note("ready", "relay counts a process as started at once: set ready: true, and have the program write {\"ready\":true} when it can work, so that relay finds a broken process before giving it a message")
		}
	},
})
