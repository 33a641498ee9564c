package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// override is one variable or flag: a path into the tree of keys, and text.
type override struct {
	at       origin
	segments []string
	text     string
	// fold compares names without case, and takes _ for -: a variable's name has no other letters.
	fold bool
}

const (
	envPrefix = "RELAY_"
	setFlag   = "--set "
)

// environment picks the variables that are settings, sorted by name, so that RELAY_NATS comes before RELAY_NATS__URL and
// the result does not depend on the order of the environment. See the package comment for the rule.
func (b *book) environment(env []string) []override {
	vars := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if rest, ok := strings.CutPrefix(name, envPrefix); ok && value != "" {
			first, _, nested := strings.Cut(rest, "__")
			if nested || b.root.field(strings.ToLower(first)) != nil {
				vars[name] = value
			}
		}
	}
	var out []override
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		segments := strings.Split(strings.TrimPrefix(name, envPrefix), "__")
		out = append(out, override{at: origin{file: name}, segments: segments, text: vars[name], fold: true})
	}
	return out
}

// flags reads the arguments of --set.
func (c *collector) flags(set []string) []override {
	var out []override
	for _, s := range set {
		path, value, ok := strings.Cut(s, "=")
		path = strings.TrimSpace(path)
		at := origin{file: setFlag + path}
		if !ok || path == "" {
			// Without an = the argument may be a secret whose key was forgotten.
			c.refuse(origin{file: "--set"}, "", "must be key=value, such as nats.url=nats://127.0.0.1:4222")
			continue
		}
		out = append(out, override{at: at, segments: strings.Split(path, "."), text: value})
	}
	return out
}

func (o override) matches(name, segment string) bool {
	if !o.fold {
		return name == segment
	}
	return strings.EqualFold(strings.ReplaceAll(name, "-", "_"), segment)
}

// position finds an entry of routes, streams or schedules. A number is a position; anything else is a name.
func (o override) position(segment string, names []string) int {
	if i, err := strconv.Atoi(segment); err == nil {
		if i >= 0 && i < len(names) {
			return i
		}
		return -1
	}
	return slices.IndexFunc(names, func(name string) bool { return o.matches(name, segment) })
}

// apply checks one override and returns it as a layer: the path in the tree, as koanf has it, and the value. The names
// are those of the entries of each list that has names. ok is false after a fault.
func (c *collector) apply(o override, names map[string][]string) (tree []string, value any, ok bool) {
	ch := checker{collector: c, at: func(*yaml.Node) origin { return o.at }}
	k, path, rest := c.root, "", o.segments
	for len(rest) > 0 {
		segment := rest[0]
		if k.named() {
			i := o.position(segment, names[path])
			if i < 0 {
				c.refuse(o.at, join(path, short(segment)), "no entry has this name or position (%d in all: %s)", len(names[path]), strings.Join(names[path], ", "))
				return nil, nil, false
			}
			path = fmt.Sprintf("%s[%d]", path, i)
			tree = append(tree, strconv.Itoa(i))
			k, rest = k.elem, rest[1:]
			continue
		}
		if k.kind == table {
			if o.fold {
				segment = strings.ToLower(segment)
			}
			path, tree = join(path, short(segment)), append(tree, segment)
			k, rest = k.elem, rest[1:]
			continue
		}
		if k.kind != object && k.kind != handlers {
			break
		}
		if o.fold {
			segment = strings.ToLower(segment)
		}
		f := k.field(segment)
		switch {
		case f == nil && k.kind == handlers && k.planned(segment):
			c.refuse(o.at, join(path, segment), "%s", k.plannedMsg(segment))
			return nil, nil, false
		case f == nil:
			ch.unknown(k, o.at, path, segment)
			return nil, nil, false
		}
		path = join(path, f.name)
		tree = append(tree, f.name)
		k, rest = f, rest[1:]
	}
	node, ok := c.node(o, k, rest, path)
	if !ok {
		return nil, nil, false
	}
	secretText := k.kind == secret && len(rest) == 0 && node.Kind == yaml.ScalarNode || k.kind == texts
	if secretText && strings.HasPrefix(o.at.file, setFlag) {
		c.warnAt(o.at, path, "every user of this host can see the arguments of a program: use {file: path}, or the environment")
	}
	value, ok = ch.value(k, node, path)
	return tree, value, ok
}

// node is the override's text as a YAML node, for the key k and what the path names below it: an entry of a map of texts
// (whose name may hold dots), {file: …} of a secret, {seq: …} of a start.
func (c *collector) node(o override, k *key, rest []string, path string) (*yaml.Node, bool) {
	plain := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
	if len(rest) > 0 {
		name := strings.Join(rest, ".")
		if o.fold && k.kind != texts {
			name = strings.ToLower(name)
		}
		return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{plain(name), plain(o.text)}}, true
	}
	flow := strings.HasPrefix(strings.TrimSpace(o.text), "{") || strings.HasPrefix(strings.TrimSpace(o.text), "[")
	switch k.kind {
	case text, secret:
		return plain(o.text), true
	case textual, urls, start:
		if !flow {
			return plain(o.text), true
		}
	case list:
		if !flow && !k.named() {
			n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			for s := range strings.SplitSeq(o.text, ",") {
				n.Content = append(n.Content, plain(strings.TrimSpace(s)))
			}
			return n, true
		}
	}
	n, err := c.parseYAML([]byte(o.text), o.at, path)
	if err != nil {
		return nil, false
	}
	if n == nil {
		n = plain("") // --set drain= is no way to say nothing
	}
	return n, true
}
