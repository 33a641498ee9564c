package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// kind is how the value of a key is written.
type kind int

const (
	object   kind = iota // a mapping with known keys
	list                 // of elem
	texts                // a mapping of any names to text
	table                // a mapping of any names to elem
	text                 // a string
	textual              // a string that a type reads by UnmarshalText
	urls                 // a list, or a string with commas
	secret               // a string, or {file: path}
	start                // all, new, {since: …} or {seq: …}
	handlers             // an object with a key for each kind of handler, or a word
	empty                // {}
	duration             //
	integer              //
	number               //
	boolean              //
)

// what says how to write a value of this key; it follows "must be".
func (k *key) what() string {
	if k.kind == handlers {
		return "one of " + k.kindNames("and") + ", such as {http: {url: …}}"
	}
	return [...]string{
		object: "a mapping of keys", list: "a list", texts: "a mapping of names to text", table: "a mapping of names to mappings", text: "text", textual: "text",
		urls: "a list of URLs", secret: "text or {file: path}", start: "all, new, {since: <time>} or {seq: <number>}",
		empty:    "empty: {}",
		duration: "a duration such as 30s, 5m or 1h30m", integer: "a whole number", number: "a number", boolean: "true or false",
	}[k.kind]
}

// key is one key of the configuration, and those below it. The tree is made from the koanf tags of [Config].
type key struct {
	name string
	// path is the key's name in docs: as it is written in a file, without positions: routes.retry.max.
	path   string
	kind   kind
	typ    reflect.Type
	index  []int // of the field in its struct
	fields []*key
	elem   *key // of a list, or a table
	// hkind is the kind of handler of a key directly below handler.
	hkind handler.Kind
}

var (
	textType    = reflect.TypeFor[encoding.TextUnmarshaler]()
	specialKind = map[reflect.Type]kind{
		reflect.TypeFor[time.Duration]():  duration,
		reflect.TypeFor[consumer.Start](): start,
		reflect.TypeFor[Secret]():         secret,
		reflect.TypeFor[URLs]():           urls,
	}
)

// keyOf is the key of a value of type t, with those below it. The keys under defaults are those of a route, with the paths
// of a route.
func (b *book) keyOf(t reflect.Type, path string) *key {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	k := &key{path: path, typ: t}
	if special, ok := specialKind[t]; ok {
		k.kind = special
		return k
	}
	if reflect.PointerTo(t).Implements(textType) {
		k.kind = textual
		return k
	}
	switch t.Kind() {
	case reflect.Struct:
		switch {
		case t == reflect.TypeFor[Handler]():
			k.kind, k.fields = handlers, b.kindKeys("routes.handler") // which are the same wherever a handler stands
		case t.NumField() == 0:
			k.kind = empty
		default:
			k.kind, k.fields = object, b.fieldsOf(t, path, nil)
		}
	case reflect.Slice:
		k.kind = list
		k.elem = b.keyOf(t.Elem(), path)
	case reflect.Map:
		if k.kind = texts; t.Elem().Kind() == reflect.Struct && !reflect.PointerTo(t.Elem()).Implements(textType) && t.Elem() != reflect.TypeFor[Secret]() {
			k.kind, k.elem = table, b.keyOf(t.Elem(), path)
		}
	case reflect.String:
		k.kind = text
	case reflect.Bool:
		k.kind = boolean
	case reflect.Float64:
		k.kind = number
	case reflect.Int:
		k.kind = integer
	default:
		// A field of a type that no file can set is a mistake in the program: every test of this package meets it.
		panic(fmt.Sprintf("config: %s has type %v", path, t))
	}
	return k
}

func (b *book) fieldsOf(t reflect.Type, path string, index []int) (fields []*key) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		at := append(index[:len(index):len(index)], i)
		switch {
		case option == "squash":
			fields = append(fields, b.fieldsOf(f.Type, path, at)...)
		case name == "-", !f.IsExported():
		default:
			below := join(path, name)
			if below == "defaults" {
				below = "routes"
			}
			k := b.keyOf(f.Type, below)
			k.name, k.index = name, at
			fields = append(fields, k)
		}
	}
	return fields
}

// field finds a key by its name. It returns nil when there is none.
func (k *key) field(name string) *key {
	for _, f := range k.fields {
		if f.name == name {
			return f
		}
	}
	return nil
}

// kindNames lists the kinds of handler below k: "http, exec and discard".
func (k *key) kindNames(last string) string {
	var names []string
	for _, f := range k.fields {
		names = append(names, f.name)
	}
	return listed(names, last)
}

// holdsSecrets tells whether a secret stands directly below k: text in place of k may be one whose key was forgotten.
func (k *key) holdsSecrets() bool {
	return slices.ContainsFunc(k.fields, func(f *key) bool { return f.kind == secret })
}

// named tells whether k is a list whose entries have a name of their own: routes and streams.
func (k *key) named() bool { return k.kind == list && k.elem.field("name") != nil }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
