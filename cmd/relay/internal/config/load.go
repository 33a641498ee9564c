package config

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"

	"github.com/relaymq/relay/consumer/handler"
)

// Options says where a configuration comes from.
type Options struct {
	// File is the path of the YAML file. Empty means none: everything comes from Env and Set.
	File string
	// Set are key=value pairs, the last layer.
	Set []string
	// Env is the environment as os.Environ returns it. Only RELAY_… variables count, see the package comment.
	Env []string
	// Context is a context of the nats command that replaces what File and Env say of the server.
	Context string
	// Kinds are kinds of handler beside the stock ones.
	Kinds []handler.Kind
	// Client is for a command that only talks to the server: routes are not required.
	Client bool
}

// Load reads, merges and checks a configuration. What is wrong with it comes back as [Faults], all at once. It reads
// the files that secrets name, and looks whether those of credentials and certificates are there; it does not talk to a
// server.
func Load(opts Options) (*Config, error) {
	c := newCollector(opts.File, opts.Kinds...)
	c.client = opts.Client
	var data []byte
	if opts.File != "" {
		f, err := os.Open(opts.File)
		if err == nil {
			defer f.Close()
			if !c.ownFile(f) {
				return nil, c.err()
			}
			data, err = readAll(f, maxFile)
		}
		if err != nil {
			c.refuse(origin{file: opts.File}, "", "cannot read the configuration: %v", plain(err))
			return nil, c.err()
		}
	}
	return c.load(data, opts)
}

func (c *collector) load(data []byte, opts Options) (*Config, error) {
	node, err := c.parseYAML(data, origin{file: c.file, line: 1}, "")
	if err != nil {
		return nil, c.err()
	}
	l := layers{book: c.book, ko: koanf.New("."), names: map[string][]string{}}
	if node != nil {
		ch := checker{collector: c, at: func(n *yaml.Node) origin { return origin{file: c.file, line: n.Line} }}
		if tree, ok := ch.value(c.root, node, ""); ok {
			if err := l.add(nil, tree); err != nil {
				return nil, err
			}
		}
	}
	overrides := append(c.environment(opts.Env), c.flags(opts.Set)...)
	for _, o := range overrides {
		path, value, ok := c.apply(o, l.names)
		if !ok {
			continue
		}
		if err := l.add(path, value); err != nil {
			return nil, err
		}
	}
	c.misspelt(opts.Env, overrides)
	cfg := defaults()
	if err := l.decode(&cfg); err != nil {
		return nil, err
	}
	c.context(&cfg.NATS, opts.Context)
	c.validate(&cfg)
	if err := c.err(); err != nil {
		return nil, err
	}
	for i, r := range cfg.Routes {
		cfg.Routes[i] = r.withDefaults(cfg.Service)
	}
	if cfg.Admin.Listen == off {
		cfg.Admin.Listen = ""
	}
	if cfg.Admin.Probes == off {
		cfg.Admin.Probes = ""
	}
	cfg.Source = source(data, opts.File, overrides)
	cfg.Source.Warnings = c.warnings
	cfg.Source.named = c.files
	for _, f := range c.files {
		cfg.Source.Files = append(cfg.Source.Files, f.path)
	}
	slices.Sort(cfg.Source.Files)
	cfg.Source.Files = slices.Compact(cfg.Source.Files)
	return &cfg, nil
}

func source(data []byte, file string, overrides []override) Source {
	s := Source{File: file}
	if file != "" {
		s.Hash = fmt.Sprintf("%x", sha256.Sum256(data))[:12]
	}
	for _, o := range overrides {
		s.Overrides = append(s.Overrides, o.at.file)
	}
	return s
}

// layers merges by koanf. It keeps routes, streams and schedules as maps by position, because koanf replaces lists as a whole and an
// override may name one key of one route.
type layers struct {
	book  *book
	ko    *koanf.Koanf
	names map[string][]string // of the entries of each
}

// add lays a checked value over what is there, at a path of the tree.
func (l layers) add(path []string, value any) error {
	for _, list := range []string{"routes", "streams", "schedules"} {
		if len(path) == 0 {
			if tree := value.(map[string]any); tree[list] != nil {
				tree[list] = l.byPosition(list, tree[list])
			}
		} else if len(path) == 1 && path[0] == list {
			l.ko.Delete(list) // a whole list replaces a whole list
			value = l.byPosition(list, value)
		}
	}
	for i := len(path) - 1; i >= 0; i-- {
		value = map[string]any{path[i]: value}
	}
	if err := l.ko.Load(confmap.Provider(value.(map[string]any), ""), nil); err != nil {
		return fmt.Errorf("config: merging: %w", err)
	}
	return nil
}

func (l layers) byPosition(list string, entries any) map[string]any {
	m, names := map[string]any{}, []string{}
	for i, e := range entries.([]any) {
		name, _ := e.(map[string]any)["name"].(string)
		m[strconv.Itoa(i)], names = e, append(names, name)
	}
	l.names[list] = names
	return m
}

// entries is the reverse of byPosition.
func entries(m any) []any {
	byPosition, _ := m.(map[string]any)
	list := make([]any, len(byPosition))
	for i := range list {
		list[i] = byPosition[strconv.Itoa(i)]
	}
	return list
}

// decode lays the defaults of routes under each of them and fills cfg, whose values are the defaults of all else.
func (l layers) decode(cfg *Config) error {
	tree := l.ko.Raw()
	base, _ := tree["defaults"].(map[string]any)
	routes := entries(tree["routes"])
	for i, r := range routes {
		merged := koanf.New(".")
		for _, layer := range []map[string]any{defaultsFor(base, r.(map[string]any)), r.(map[string]any)} {
			if err := merged.Load(confmap.Provider(layer, ""), nil); err != nil {
				return fmt.Errorf("config: merging defaults: %w", err)
			}
		}
		routes[i] = merged.Raw()
	}
	tree["routes"], tree["streams"], tree["schedules"] = routes, entries(tree["streams"]), entries(tree["schedules"])

	final := koanf.New(".")
	if err := final.Load(confmap.Provider(tree, ""), nil); err != nil {
		return fmt.Errorf("config: merging: %w", err)
	}
	if err := l.book.decode(final.Raw(), cfg); err != nil {
		return fmt.Errorf("config: decoding: %w", err)
	}
	return nil
}

// defaultsFor leaves out the handlers that the route does not name, when it names one.
func defaultsFor(base, route map[string]any) map[string]any {
	own, _ := route["handler"].(map[string]any)
	common, _ := base["handler"].(map[string]any)
	if len(own) == 0 || len(common) == 0 {
		return base
	}
	out, kinds := map[string]any{}, map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for kind, v := range common {
		if _, ok := own[kind]; ok {
			kinds[kind] = v
		}
	}
	out["handler"] = kinds
	return out
}
