package repo

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers are what each package of relay's core may import of the others; see "Layout" in docs/design.md. What is under internal/ at
// the root is for all, but for what has a line here.
var layers = map[string][]string{
	"ack":                         {},
	"event":                       {},
	"schedule":                    {},
	"supervisor":                  {},
	"internal/supervise":          {"supervisor"}, // what it supervises by
	"client":                      {},
	"dlq":                         {},
	"consumer":                    {"ack", "dlq", "event", "supervisor", "internal/supervise", "consumer/internal/*"},
	"consumer/internal/letters":   {"supervisor"},
	"consumer/internal/memory":    {"ack", "internal/supervise"},
	"consumer/internal/metrics":   {"internal/supervise"}, // its verdicts, actions and states are labels
	"consumer/internal/suspects":  {"internal/supervise"},
	"consumer/internal/durables":  {"ack", "consumer/internal/catchup"},
	"consumer/internal/stores":    {"consumer/internal/suspects"}, // a bucket is where processes say that they live
	"consumer/internal/upkeep":    {"consumer/internal/stores"},   // it watches what they open
	"consumer/internal/takeover":  {"ack"},
	"consumer/internal/watchdog":  {"ack", "consumer/internal/backlog", "consumer/internal/health", "consumer/internal/pulls"}, // what it looks at
	"consumer/internal/operators": {"internal/supervise"},
	"consumer/internal/peers":     {"internal/supervise"},
	"consumer/internal/reports":   {"event", "internal/supervise"},
	"consumer/internal/settle": { // the way of a message through all that may become of it
		"ack", "internal/supervise", "consumer/internal/health", "consumer/internal/letters", "consumer/internal/metrics", "consumer/internal/parking",
		"consumer/internal/stores", "consumer/internal/suspects", "consumer/internal/tally", "consumer/internal/unstored",
	},
	"consumer/internal/intake": { // what must be known of a message before it goes that way
		"ack", "internal/supervise", "consumer/internal/generations", "consumer/internal/memory", "consumer/internal/settle", "consumer/internal/strays", "consumer/internal/unstored",
	},
	"consumer/internal/source": { // what all the rooms of a durable do together
		"ack", "internal/supervise", "consumer/internal/backlog", "consumer/internal/catchup", "consumer/internal/durables", "consumer/internal/gaps",
		"consumer/internal/generations", "consumer/internal/health", "consumer/internal/identity", "consumer/internal/intake", "consumer/internal/link",
		"consumer/internal/memory", "consumer/internal/metrics", "consumer/internal/pulls", "consumer/internal/settle", "consumer/internal/stores",
		"consumer/internal/strays", "consumer/internal/takeover", "consumer/internal/tally", "consumer/internal/tenure", "consumer/internal/watchdog",
	},
	"consumer/internal/engine": { // what all the rooms of an instance do together
		"ack", "dlq", "event", "supervisor", "internal/supervise", "consumer/internal/*",
	},
	"consumer/internal/route": { // what all the rooms of a route and of its messages do together
		"dlq", "event", "supervisor", "internal/supervise", "consumer/internal/backlog", "consumer/internal/caller", "consumer/internal/catchup", "consumer/internal/generations",
		"consumer/internal/health", "consumer/internal/intake", "consumer/internal/limits", "consumer/internal/memory", "consumer/internal/metrics",
		"consumer/internal/operators", "consumer/internal/outcome", "consumer/internal/parking", "consumer/internal/peers", "consumer/internal/placing",
		"consumer/internal/replayed", "consumer/internal/reply", "consumer/internal/reports", "consumer/internal/settle", "consumer/internal/source",
		"consumer/internal/stores", "consumer/internal/suspects", "consumer/internal/tally", "consumer/internal/tenure", "consumer/internal/upkeep",
		"consumer/internal/usercode",
	},
	"consumer/internal/usercode":  {"internal/supervise"},                                                         // what code says of a message is a verdict
	"consumer/internal/outcome":   {"internal/supervise", "consumer/internal/caller", "consumer/internal/settle"}, // what it says of a message
	"consumer/internal/division":  {"consumer/internal/usercode", "consumer/internal/generations"},
	"consumer/internal/pulls":     {"consumer/internal/link"}, // a durable asks for its part of what the link brings
	"consumer/internal/*":         {},
	"consumer/handler":            {"consumer"},
	"consumer/handler/internal/*": {"consumer", "consumer/handler", "consumer/handler/internal/*", "internal/supervise"},
	"consumer/handler/stock":      {"consumer/handler", "consumer/handler/*"},
	"consumer/handler/*":          {"consumer", "consumer/handler", "consumer/handler/internal/*"},
}

// commands are what the packages that relay's commands stand on may import of each other and of the commands. Families of commands may import
// all of these, and none another family; only cmd/relay/program knows the families.
var commands = map[string][]string{
	"cmd/relay/internal/cli":       {},
	"cmd/relay/internal/routes":    {"cmd/relay/internal/cli"},
	"cmd/relay/internal/waiting":   {"cmd/relay/internal/cli", "cmd/relay/internal/routes"},
	"cmd/relay/internal/command/*": {"cmd/relay/internal/cli", "cmd/relay/internal/routes", "cmd/relay/internal/waiting"},
}

// A family of commands can be read by itself, with what all of them stand on.
func TestImports_familiesOfCommandsDoNotKnowEachOther(t *testing.T) {
	t.Parallel()
	const module = "github.com/relaymq/relay/"
	command := func(dir string) bool {
		_, ok := commands[dir]
		return ok || path.Dir(dir) == "cmd/relay/internal/command" || dir == "cmd/relay/program"
	}
	families := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "cmd/relay/internal"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		allowed, ok := commands[dir]
		if !ok && path.Dir(dir) == "cmd/relay/internal/command" {
			allowed, families[dir] = commands["cmd/relay/internal/command/*"], true
		}
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range source.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if other, own := strings.CutPrefix(name, module); own && command(other) && !slices.Contains(allowed, other) {
				t.Errorf("%s imports %s; of the packages of commands %s may import %q", rel, other, dir, allowed)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 9 {
		t.Errorf("only %d families were looked at", len(families))
	}
}

// Imports point down, and no room of the consumer knows another one: so each can be read, and tested, by itself.
func TestImports_pointDown(t *testing.T) {
	t.Parallel()
	const module = "github.com/relaymq/relay/"
	packages := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		file, err = filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		allowed, ok := layers[dir]
		if !ok {
			if allowed, ok = layers[path.Dir(dir)+"/*"]; !ok {
				return nil
			}
		}
		packages++
		source, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range source.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			other, own := strings.CutPrefix(name, module)
			if _, layer := layers[other]; !own || !layer && strings.HasPrefix(other, "internal/") || slices.Contains(allowed, other) || slices.Contains(allowed, path.Dir(other)+"/*") {
				continue
			}
			t.Errorf("%s imports %s; of relay's packages %s may import %q", file, other, dir, allowed)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 100 {
		t.Errorf("only %d files were looked at", packages)
	}
}

// Whoever looks for a room of the consumer finds it in the design, and nothing that is not there.
func TestDesign_namesEveryRoomOfTheConsumer(t *testing.T) {
	t.Parallel()
	rooms, err := os.ReadDir(filepath.Join(root, "consumer/internal"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(text(t, "docs/design.md"), "    consumer/internal/   its rooms\n")
	list, _, _ = strings.Cut(list, "    consumer/handler/")
	list = regexp.MustCompile(`\([^)]*\)|of an? (durable|message|instance)`).ReplaceAllString(list, " ")
	named := strings.FieldsFunc(list, func(r rune) bool { return r < 'a' || r > 'z' })
	named = slices.DeleteFunc(named, func(word string) bool { return word == "and" })
	for _, room := range rooms {
		if n := len(named); room.IsDir() {
			if named = slices.DeleteFunc(named, func(name string) bool { return name == room.Name() }); len(named) != n-1 {
				t.Errorf("docs/design.md names room %s %d times, want once", room.Name(), n-len(named))
			}
		}
	}
	if len(named) > 0 {
		t.Errorf("docs/design.md names rooms that are not there: %q", named)
	}
}
