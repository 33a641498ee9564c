package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/relaymq/relay/consumer/handler"
)

// checker compares one layer with the keys that exist, and turns it into plain values. What is at fault is left out.
type checker struct {
	*collector
	at func(*yaml.Node) origin
}

// value returns what n holds as the value of k: string, int, float64, bool, []any or map[string]any. The second result is
// false when there is nothing: n is null, or at fault.
func (c checker) value(k *key, n *yaml.Node, path string) (any, bool) {
	if c.full() {
		return nil, false
	}
	c.origins[path] = c.at(n)
	if n.ShortTag() == "!!null" && k.kind != empty {
		return nil, false
	}
	switch k.kind {
	case object:
		return c.object(k, n, path)
	case handlers:
		return c.handler(k, n, path)
	case list:
		return c.list(k, n, path)
	case texts:
		return c.texts(k, n, path)
	case table:
		return c.table(k, n, path)
	case urls:
		if n.Kind == yaml.SequenceNode {
			return c.urls(k, n, path)
		}
	case secret:
		if n.Kind == yaml.MappingNode {
			return c.secretFile(k, n, path)
		}
	case start:
		if n.Kind == yaml.MappingNode {
			return c.start(k, n, path)
		}
	case empty:
		if n.Kind == yaml.MappingNode && len(n.Content) == 0 || n.ShortTag() == "!!null" {
			return map[string]any{}, true
		}
		return c.wrong(k, n, path)
	}
	return c.scalar(k, n, path)
}

// wrong is the fault of a value that is not of its key's kind.
func (c checker) wrong(k *key, n *yaml.Node, path string) (any, bool) {
	hint := ""
	if k.kind == text || k.kind == textual {
		switch n.Kind {
		case yaml.ScalarNode:
			hint = ": put it in quotes"
		case yaml.MappingNode:
			hint = `: put it in quotes, as in "{2}"`
		}
	}
	c.refuse(c.at(n), path, "must be %s%s (got %s)", k.what(), hint, got(k, n))
	return nil, false
}

// got describes a value, but for one that may be a secret.
func got(k *key, n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case k.kind == secret || k.kind == texts || k.holdsSecrets():
		return "a value of another type"
	case n.ShortTag() == "!!str":
		return strconv.Quote(n.Value)
	}
	return n.Value
}

func (c checker) scalar(k *key, n *yaml.Node, path string) (any, bool) {
	if n.Kind != yaml.ScalarNode {
		return c.wrong(k, n, path)
	}
	tag := n.ShortTag()
	isText := tag == "!!str" || tag == "!!timestamp"
	switch k.kind {
	case text, urls:
		if isText {
			return n.Value, true
		}
	case secret:
		// A password of digits is a password.
		if tag != "!!bool" {
			return n.Value, true
		}
	case textual, start:
		if !isText && tag != "!!int" {
			break
		}
		if err := reflect.New(k.typ).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value)); err != nil {
			c.refuse(c.at(n), path, "%v", err)
			return nil, false
		}
		return n.Value, true
	case duration:
		if _, err := time.ParseDuration(n.Value); err == nil {
			return n.Value, true
		}
	case boolean:
		var b bool
		if tag == "!!bool" && n.Decode(&b) == nil {
			return b, true
		}
	case integer:
		var i int
		if tag == "!!int" && n.Decode(&i) == nil {
			return i, true
		}
	case number:
		var f float64
		if (tag == "!!int" || tag == "!!float") && n.Decode(&f) == nil {
			return f, true
		}
	}
	return c.wrong(k, n, path)
}

// pairs calls each for the entries of a mapping, in order, and refuses keys that are no text or were there before.
func (c checker) pairs(k *key, n *yaml.Node, path string, each func(name string, key, value *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		c.wrong(k, n, path)
		return false
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content) && !c.full(); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			c.refuse(c.at(name), path, "a key must be text")
			continue
		}
		full := join(path, short(name.Value))
		if before, ok := lines[name.Value]; ok {
			c.refuse(c.at(name), full, "appears twice (first on line %d)", before)
			continue
		}
		lines[name.Value] = name.Line
		each(name.Value, name, value)
	}
	return true
}

// short cuts a name that nobody would read to the end.
func short(name string) string {
	if len(name) > 64 {
		return strings.ToValidUTF8(name[:64], "") + "…"
	}
	return name
}

func (c checker) object(k *key, n *yaml.Node, path string) (any, bool) {
	m := map[string]any{}
	var former *yaml.Node
	ok := c.pairs(k, n, path, func(name string, at, value *yaml.Node) {
		f := k.field(name)
		if f == nil && k.path+"."+name == formerRouteTrip {
			former = value
			return
		}
		if f == nil {
			c.unknown(k, c.at(at), path, name)
			return
		}
		below := join(path, name)
		if path == "defaults" && (name == "name" || name == "subjects") {
			c.refuse(c.at(at), below, "cannot have a default: set it in each route")
			return
		}
		if v, ok := c.value(f, value, below); ok {
			m[name] = v
		}
		// The key's own line says more than that of a mapping that starts below it.
		c.origins[below] = c.at(at)
	})
	if former != nil {
		c.former(k, former, path, m)
	}
	return m, ok
}

// formerRouteTrip was the name of routes.supervisor.route_trip.of until 0.3.
const formerRouteTrip = "routes.supervisor.route_trip_after"

// former reads the value of formerRouteTrip for the key that has its place.
func (c checker) former(k *key, n *yaml.Node, path string, m map[string]any) {
	was, now := join(path, "route_trip_after"), join(path, "route_trip.of")
	trip, _ := m["route_trip"].(map[string]any)
	if _, both := trip["of"]; both {
		c.refuse(c.at(n), was, "is the former name of route_trip.of, which is set, too: remove route_trip_after")
		return
	}
	c.warnAt(c.at(n), was, "is the former name of route_trip.of, and a later version will not know it: write route_trip: {of: %s}", short(n.Value))
	v, ok := c.value(k.field("route_trip").field("of"), n, now)
	if !ok {
		return
	}
	if trip == nil {
		trip = map[string]any{}
		m["route_trip"] = trip
	}
	trip["of"] = v
}

// unknown refuses a key that does not exist, and keeps later stages from missing the one that was meant.
func (c checker) unknown(k *key, at origin, path, name string) {
	meant := suggest(k, name)
	hint := ""
	switch {
	case k.path+"."+name == formerRouteTrip: // not in a file
		hint = ": its name is route_trip.of"
	case meant != "":
		hint = fmt.Sprintf(" (did you mean %s?)", meant)
		c.bad[join(path, meant)] = true
	}
	c.refuse(at, join(path, short(name)), "unknown key%s", hint)
}

func (c checker) list(k *key, n *yaml.Node, path string) (any, bool) {
	if n.Kind != yaml.SequenceNode {
		return c.wrong(k, n, path)
	}
	if len(n.Content) > maxEntries {
		c.refuse(c.at(n), path, "has %d entries: at most %d are allowed", len(n.Content), maxEntries)
		return nil, false
	}
	items := make([]any, 0, len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		v, ok := c.value(k.elem, item, at)
		switch {
		case !ok && !c.bad[at] && item.ShortTag() == "!!null":
			c.wrong(k.elem, item, at)
		case ok:
			items = append(items, v)
			continue
		}
		if k.named() {
			items = append(items, map[string]any{}) // so that the entries after it keep their positions
		}
	}
	return items, true
}

func (c checker) texts(k *key, n *yaml.Node, path string) (any, bool) {
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > maxEntries {
		c.refuse(c.at(n), path, "has %d entries: at most %d are allowed", len(n.Content)/2, maxEntries)
		return nil, false
	}
	m := map[string]any{}
	ok := c.pairs(k, n, path, func(name string, at, value *yaml.Node) {
		below := join(path, name)
		c.origins[below] = c.at(at)
		if value.Kind == yaml.MappingNode {
			if _, v, ok := c.readSecret(&key{kind: secret}, value, below); ok {
				m[name] = v
			}
			return
		}
		if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
			c.refuse(c.at(at), below, "must be text")
			return
		}
		m[name] = value.Value // 8080 and true are text here: variables and headers hold nothing else
	})
	return m, ok
}

func (c checker) table(k *key, n *yaml.Node, path string) (any, bool) {
	if len(n.Content)/2 > maxEntries {
		c.refuse(c.at(n), path, "has %d entries: at most %d are allowed", len(n.Content)/2, maxEntries)
		return nil, false
	}
	m := map[string]any{}
	ok := c.pairs(k, n, path, func(name string, at, value *yaml.Node) {
		below := join(path, name)
		if value.ShortTag() == "!!null" {
			c.refuse(c.at(value), below, "must be %s", k.elem.what())
		} else if v, ok := c.value(k.elem, value, below); ok {
			m[name] = v
		}
		c.origins[below] = c.at(at)
	})
	return m, ok
}

func (c checker) urls(k *key, n *yaml.Node, path string) (any, bool) {
	v, ok := c.list(&key{kind: list, elem: &key{kind: text}}, n, path)
	if !ok {
		return nil, false
	}
	parts := []string{}
	for _, s := range v.([]any) {
		parts = append(parts, s.(string))
	}
	return strings.Join(parts, ","), true
}

// only returns the value of the one entry of a mapping, whose name must be among those given.
func (c checker) only(k *key, n *yaml.Node, path string, names ...string) (name, value string, ok bool) {
	if len(n.Content) == 2 && n.Content[1].Kind == yaml.ScalarNode && n.Content[1].ShortTag() != "!!null" {
		for _, name := range names {
			if n.Content[0].Value == name {
				return name, n.Content[1].Value, true
			}
		}
	}
	c.wrong(k, n, path)
	return "", "", false
}

// start turns the mapping into the form that consumer.Start reads, so that layers replace it as a whole.
func (c checker) start(k *key, n *yaml.Node, path string) (any, bool) {
	name, value, ok := c.only(k, n, path, "since", "seq")
	if !ok {
		return nil, false
	}
	return c.scalar(k, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name + ":" + value, Line: n.Line}, path)
}

// secretFile checks {file: path}. The decoder reads the file.
func (c checker) secretFile(k *key, n *yaml.Node, path string) (any, bool) {
	file, _, ok := c.readSecret(k, n, path)
	return map[string]any{"file": file}, ok
}

// readSecret returns what {file: path} says.
func (c checker) readSecret(k *key, n *yaml.Node, path string) (file, value string, ok bool) {
	_, file, ok = c.only(k, n, path, "file")
	if !ok {
		return "", "", false
	}
	c.secretFileMode(c.at(n), path, file)
	c.names(path, file)
	value, err := handler.ReadSecret(file)
	if err != nil {
		c.refuse(c.at(n), path, "cannot read the file %q: %v", file, err)
		return "", "", false
	}
	return file, value, true
}

// planned tells whether that is a kind of handler whose place is kept.
func (k *key) planned(name string) bool {
	return k.field(name) == nil && name == "remote"
}

func (c checker) handler(k *key, n *yaml.Node, path string) (any, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && k.field(n.Value) != nil && k.field(n.Value).kind == empty:
		return map[string]any{n.Value: map[string]any{}}, true
	case n.Kind == yaml.ScalarNode && k.planned(n.Value):
		c.refuse(c.at(n), path, "%s", k.plannedMsg(n.Value))
		return nil, false
	case n.Kind == yaml.ScalarNode && k.field(n.Value) != nil:
		c.refuse(c.at(n), path, "%s needs settings: {%s: {…}}", n.Value, n.Value)
		return nil, false
	case n.Kind != yaml.MappingNode:
		return c.wrong(k, n, path)
	}
	known := *n
	known.Content = nil
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if k.planned(name.Value) {
			c.refuse(c.at(name), join(path, name.Value), "%s", k.plannedMsg(name.Value))
			continue
		}
		known.Content = append(known.Content, name, n.Content[i+1])
	}
	return c.object(k, &known, path)
}

func (k *key) plannedMsg(name string) string {
	return fmt.Sprintf("the %s handler is planned, and not in this version: use %s", name, k.kindNames("or"))
}
