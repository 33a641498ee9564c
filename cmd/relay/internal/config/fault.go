package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler"
	plaintext "github.com/relaymq/relay/internal/plain"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// File is the file, or the variable (RELAY_NATS__URL) or flag (--set nats.url) when the value came from there.
	File string
	// Line starts at 1; 0 when there is none.
	Line int
	// Key is the full key, such as routes[1].retry.max. Empty when the fault is about the file itself.
	Key string
	Msg string
}

func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	for _, s := range []string{f.Key, f.Msg} {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	return b.String()
}

// Faults is the error of [Load] when the configuration is at fault: in the order of the file, then variables and flags.
type Faults []Fault

// Error has one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

const (
	// maxFaults is what a person reads. It also bounds the work on a hostile file.
	maxFaults = 100
	// maxMsg cuts a message that repeats a huge value.
	maxMsg = 400
)

// origin is where a value was written.
type origin struct {
	file string
	line int
}

// collector gathers faults, and knows where each key came from.
type collector struct {
	*book
	file     string // of faults about keys that stand nowhere
	faults   []Fault
	warnings []Warning
	// origins has the place of every key that some layer set, by its path as in Fault.Key. The last layer wins.
	origins map[string]origin
	// bad are the keys that were refused, or are missing because they were misspelt: later stages are silent about them.
	bad map[string]bool
	// files are those that the configuration names.
	files []namedFile
	// client is for a command that only talks to the server, and needs no routes.
	client bool
}

func newCollector(file string, extra ...handler.Kind) *collector {
	return &collector{book: newBook(extra), file: file, origins: map[string]origin{}, bad: map[string]bool{}}
}

func (c *collector) full() bool { return len(c.faults) >= maxFaults }

// refuse adds a fault about a value that is then left out. An empty key is the file itself.
func (c *collector) refuse(at origin, key, format string, args ...any) {
	c.bad[key] = true
	c.add(at, key, fmt.Sprintf(format, args...))
}

// fault adds a fault about the meaning of a value, unless the key, one above it or one below it was refused before. What
// a route has from defaults: is a fault of that key, once for all routes.
func (c *collector) fault(key, format string, args ...any) {
	if c.silent(key) {
		return
	}
	at := c.at(key)
	if !c.known(key) {
		if d := inDefaults(key); c.known(d) {
			key = d
		}
	}
	c.add(at, key, fmt.Sprintf(format, args...))
}

func (c *collector) add(at origin, key, msg string) {
	if f := shown(at, key, msg); !c.full() && !slices.Contains(c.faults, f) {
		c.faults = append(c.faults, f)
	}
}

// shown is a fault as it may be printed: one line, whatever a value holds, and nothing that looks like a secret.
func shown(at origin, key, msg string) Fault {
	clean := func(s string) string {
		return plaintext.Text(strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, mask(s)))
	}
	if msg = clean(msg); len(msg) > maxMsg {
		msg = strings.ToValidUTF8(msg[:maxMsg], "") + "…"
	}
	return Fault{File: mask(at.file), Line: at.line, Key: clean(key), Msg: msg}
}

// faultsOf adds the faults joined in err, each of which begins with a key below prefix.
func (c *collector) faultsOf(prefix string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			c.faultsOf(prefix, e)
		}
		return
	}
	if m := keyed.FindStringSubmatch(err.Error()); m != nil {
		c.fault(prefix+"."+m[1], "%s", m[2])
		return
	}
	c.fault(prefix, "%s", err.Error())
}

// keyed is the shape of an error that begins with the name of a key.
var keyed = regexp.MustCompile(`(?s)^([a-z0-9_]+(?:\[\d+\])?(?:\.[a-z0-9_]+(?:\[\d+\])?)*): (.*)$`)

// parent is the path of the enclosing key: a.b[1] → a.b → a → "".
func parent(key string) string {
	return key[:max(0, strings.LastIndexAny(key, ".["))]
}

// inDefaults is the path under defaults: of a key of a route, or "".
func inDefaults(key string) string {
	rest, ok := strings.CutPrefix(key, "routes[")
	if !ok {
		return ""
	}
	if _, rest, ok = strings.Cut(rest, "]."); !ok {
		return ""
	}
	return "defaults." + rest
}

// at is where the key was written, or else the nearest key around it.
func (c *collector) at(key string) origin {
	for k := key; k != ""; k = parent(k) {
		for _, from := range []string{k, inDefaults(k)} {
			if c.known(from) {
				return c.origins[from]
			}
		}
	}
	return origin{file: c.file}
}

// known tells whether some layer set the key. The path of the file as a whole, "", is no key.
func (c *collector) known(key string) bool {
	_, ok := c.origins[key]
	return ok && key != ""
}

// silent tells whether the key was dealt with by an earlier stage.
func (c *collector) silent(key string) bool {
	if !c.known(key) {
		if d := inDefaults(key); d != "" && c.silent(d) {
			return true
		}
	}
	for k := key; k != ""; k = parent(k) {
		if c.bad[k] {
			return true
		}
	}
	for b := range c.bad {
		if strings.HasPrefix(b, key) && strings.IndexAny(b[len(key):], ".[") == 0 {
			return true
		}
	}
	return false
}

// err is what Load returns.
func (c *collector) err() error {
	if len(c.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(c.faults, func(a, b Fault) int {
		inFile := func(f Fault) int {
			if f.File == c.file {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(inFile(a), inFile(b)), cmp.Compare(a.Line, b.Line))
	})
	if c.full() {
		c.faults = append(c.faults, Fault{File: c.file, Msg: fmt.Sprintf("only the first %d faults are shown", maxFaults)})
	}
	return Faults(c.faults)
}

// errRefused stops the reading of a document that has nothing worth checking; its fault has been added.
var errRefused = errors.New("refused")
