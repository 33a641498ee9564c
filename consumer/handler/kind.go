// Package handler says what a kind of handler is: a name in the configuration, settings, and how a handler is made of
// them. The kinds below this package are listed in package stock; a kind of your own is made in the same way, and given to
// [github.com/relaymq/relay/cmd/relay/program.Main].
//
//	var Kind = handler.Define(handler.Definition[Config]{
//		Name: "print",
//		Docs: map[string]handler.Doc{
//			"":       {Text: "writes every message to standard output"},
//			"prefix": {Text: "what stands before each"},
//		},
//		Build: func(c Config, _ handler.Env, rt *consumer.Route) error {
//			rt.Handler = printer{c.Prefix}
//			return nil
//		},
//	})
//
// The rest follows from that: the file takes handler: {print: {prefix: …}} with faults that name file, line and key, the
// schema and the defaults know it, lint checks it, explain names it, and variables and --set reach it.
package handler

import (
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
)

// Config is the settings of a kind: a struct whose fields have koanf tags, each the name of a key. Fields may be strings,
// bools, ints, float64, time.Duration, [Secret], consumer.Bytes, map[string]string, structs of such fields, pointers to
// them, and slices. A struct without fields is a kind that needs no settings.
type Config[C any] interface {
	// WithDefaults returns the settings with what they leave out.
	WithDefaults() C
	// Validate returns every fault, joined, each beginning with the name of its key: "url: is required". It reads no files
	// and repeats nothing that may be a secret.
	Validate() error
}

// Definition is all that relay needs to know of a kind. Name, Docs and Build are required.
type Definition[C Config[C]] struct {
	// Name is the key under handler: in the configuration.
	Name string
	// Docs has one sentence for each key, such as "tls.ca"; that of the kind itself is "".
	Docs map[string]Doc
	// Build makes the handler of a route and puts it into rt: Handler, or Factory with its Check and Outside. rt has
	// everything else already, with defaults. The settings are valid and have their defaults. It may read files; an error
	// ends the start, or refuses the change. It must not start anything: what is built may never be used.
	Build func(c C, env Env, rt *consumer.Route) error
	// Describe says in a few words what these settings do, after the name of the kind: "exec sh notify.sh". It must not show
	// a secret. It may be nil.
	Describe func(c C) string
	// Lint returns warnings: what is valid, and probably not meant. It may be nil.
	Lint func(c C, r Report)
	// Publishes says where messages go on, when they do: routes must not feed each other in a ring, nor relay's own
	// subjects. It may be nil.
	Publishes func(c C) Publishing
}

// Doc describes a key, for the schema and the reference of all keys. Defaults are not repeated.
type Doc struct {
	Text string
	// Values are the only ones allowed, for a key that is text.
	Values []string
}

// Env is what handlers may use of the relay that they run in.
type Env struct {
	// Service is the name of the service.
	Service string
	// Conn is relay's own connection. Nobody but relay closes it.
	Conn *nats.Conn
	// JetStream goes through Conn, in the configured domain.
	JetStream jetstream.JetStream
	// Own are patterns of what relay itself publishes to. No handler may publish there.
	Own []string
	// Listeners returns, as host:port, where relay itself and its servers listen: nothing that a message has a part in may
	// connect there. It may be nil.
	Listeners func() []string
	// Logger is relay's. Add the route: Logger.With("route", rt.Name).
	Logger *slog.Logger
}

// Report is where Lint tells what it finds. Keys are those of the kind: "tls.key".
type Report interface {
	// Warn is for what is likely a mistake.
	Warn(key, format string, args ...any)
	// Note is for what may well be meant.
	Note(key, format string, args ...any)
	// File is for a file that the settings name, and that is read when the handler is made: with another content in it, a reload makes
	// the handler anew.
	File(key, path string)
	// SecretFile is File for one with a secret. It warns when every user of the host may read that.
	SecretFile(key, path string)
}

// Publishing says where a handler publishes.
type Publishing struct {
	// Key is the key that Template stands at.
	Key string
	// Template is over the subject of the message: "{1}.done". Empty means nowhere.
	Template string
	// Allow are patterns of the only subjects published to. Empty means all that Template gives.
	Allow []string
	// Stored says that a stream has to take what is published.
	Stored bool
}

// Kind is a [Definition] without its type.
type Kind interface {
	Name() string
	Docs() map[string]Doc
	// Type is the struct of the settings.
	Type() reflect.Type
	// Decode makes settings of what into fills in, given a pointer to the struct.
	Decode(into func(c any) error) (Settings, error)
}

// Settings are those of one handler, and what its kind makes of them; see [Definition].
type Settings interface {
	Kind() string
	// Config is the struct.
	Config() any
	WithDefaults() Settings
	Validate() error
	// String is the kind, and what Describe says.
	String() string
	Lint(r Report)
	Publishes() Publishing
	Build(env Env, rt *consumer.Route) error
}

var nameRule = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// Define makes a Kind. It panics when the definition lacks something: that is a mistake in the program.
func Define[C Config[C]](d Definition[C]) Kind {
	switch {
	case !nameRule.MatchString(d.Name):
		panic(fmt.Sprintf("handler: the name of a kind is 1 to 32 lower-case letters, digits and _ (got %q)", d.Name))
	case d.Build == nil || reflect.TypeFor[C]().Kind() != reflect.Struct:
		panic(fmt.Sprintf("handler: the kind %s needs a Build and a struct of settings", d.Name))
	}
	return kind[C]{&d}
}

type kind[C Config[C]] struct{ d *Definition[C] }

func (k kind[C]) Name() string         { return k.d.Name }
func (k kind[C]) Docs() map[string]Doc { return k.d.Docs }
func (k kind[C]) Type() reflect.Type   { return reflect.TypeFor[C]() }

func (k kind[C]) Decode(into func(any) error) (Settings, error) {
	var c C
	if err := into(&c); err != nil {
		return nil, err
	}
	return settings[C]{k.d, c}, nil
}

type settings[C Config[C]] struct {
	d *Definition[C]
	c C
}

func (s settings[C]) Kind() string           { return s.d.Name }
func (s settings[C]) Config() any            { return s.c }
func (s settings[C]) WithDefaults() Settings { return settings[C]{s.d, s.c.WithDefaults()} }
func (s settings[C]) Validate() error        { return s.c.Validate() }

func (s settings[C]) String() string {
	if s.d.Describe == nil {
		return s.d.Name
	}
	return strings.TrimSpace(s.d.Name + " " + s.d.Describe(s.c))
}

func (s settings[C]) Lint(r Report) {
	if s.d.Lint != nil {
		s.d.Lint(s.c, r)
	}
}

func (s settings[C]) Publishes() Publishing {
	if s.d.Publishes == nil {
		return Publishing{}
	}
	return s.d.Publishes(s.c)
}

func (s settings[C]) Build(env Env, rt *consumer.Route) error { return s.d.Build(s.c, env, rt) }
