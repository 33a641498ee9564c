package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/schedule"
)

const (
	durationPattern = `^[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$`
	ratePattern     = `^[0-9]+\s*/\s*[smhd]$`
	sizePattern     = `^[0-9]+(\.[0-9]+)?\s*([KMGT]iB|[kKMGT]B|B)?$`
)

// Schema returns a JSON Schema (draft 2020-12) of the file, for editors: keys, types, allowed values, defaults and
// descriptions. What keys mean together is for [Load] to check.
func Schema(kinds ...handler.Kind) ([]byte, error) {
	b, cfg := newBook(kinds), documented()
	s := b.schemaOf(b.root, reflect.ValueOf(cfg))
	properties := s["properties"].(map[string]any)

	// Routes and defaults have the same keys, written once.
	items := properties["routes"].(map[string]any)["items"].(map[string]any)
	ref := func() map[string]any { return map[string]any{"$ref": "#/$defs/route"} }
	route := ref()
	route["required"] = []string{"name", "subjects"}
	properties["routes"].(map[string]any)["items"] = route
	properties["defaults"] = ref()
	properties["defaults"].(map[string]any)["description"] = b.docs["defaults"].text

	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "relay configuration"
	s["$defs"] = map[string]any{"route": items}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("config: writing the schema: %w", err)
	}
	return out, nil
}

// documented is a configuration that holds every default there is, but for those of handlers.
func documented() Config {
	cfg := defaults()
	cfg.Routes = []Route{Route{Fallback: new(Fallback)}.withDefaults(cfg.Service)}
	cfg.Routes[0].Batch = new(consumer.Batch{}.WithDefaults()) // which would change the default of concurrency
	cfg.Defaults = cfg.Routes[0]
	cfg.Streams = []Stream{{}}
	cfg.Schedules = []schedule.Schedule{schedule.Schedule{}.WithDefaults()}
	return cfg
}

// schemaOf describes a key; v is its default.
func (b *book) schemaOf(k *key, v reflect.Value) map[string]any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() && (k.kind == object || k.kind == list) {
		v = reflect.Zero(k.typ)
	}
	s := map[string]any{}
	if k.name != "" {
		s["description"] = b.docs[k.path].text
		if k.kind != object && k.kind != handlers {
			s["x-reload"] = classOf(k.path)
		}
		if d, ok := defaultOf(k, v); ok {
			s["default"] = d
		}
	}
	switch k.kind {
	case object, handlers:
		properties := map[string]any{}
		for _, f := range k.fields {
			at := reflect.Value{}
			if f.hkind != nil {
				at = defaultsOf(f.hkind)
			} else {
				at = v.FieldByIndex(f.index)
			}
			properties[f.name] = b.schemaOf(f, at)
		}
		o := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
		if k.kind == object {
			for name, value := range o {
				s[name] = value
			}
			break
		}
		words := []any{}
		for _, f := range k.fields {
			if f.kind == empty {
				words = append(words, map[string]any{"const": f.name})
			}
		}
		s["oneOf"] = append(words, o)
	case list:
		element := reflect.Zero(k.elem.typ)
		if v.Len() > 0 {
			element = v.Index(0)
		}
		s["type"], s["items"] = "array", b.schemaOf(k.elem, element)
	case table:
		s["type"], s["additionalProperties"] = "object", b.schemaOf(k.elem, reflect.ValueOf(consumer.Limit{}.WithDefaults()))
	case texts:
		s["type"] = "object"
		s["additionalProperties"] = map[string]any{"oneOf": []any{
			map[string]any{"type": []string{"string", "number", "boolean"}}, one("file", map[string]any{"type": "string"}),
		}}
	case text:
		s["type"] = "string"
	case textual:
		s["type"] = []string{"string", "integer"}
		switch k.typ {
		case reflect.TypeFor[consumer.Bytes]():
			s["pattern"] = sizePattern
		case reflect.TypeFor[consumer.Rate]():
			s["type"], s["pattern"] = "string", ratePattern
		}
	case urls:
		s["type"], s["items"] = []string{"string", "array"}, map[string]any{"type": "string"}
	case secret:
		s["oneOf"] = []any{map[string]any{"type": []string{"string", "number"}}, one("file", map[string]any{"type": "string"})}
	case start:
		s["oneOf"] = []any{
			map[string]any{"enum": []string{"all", "new"}},
			one("since", map[string]any{"type": "string", "format": "date-time"}),
			one("seq", map[string]any{"type": "integer", "minimum": 1}),
		}
	case empty:
		s["type"], s["maxProperties"] = []string{"object", "null"}, 0
	case duration:
		s["type"], s["pattern"] = []string{"string", "integer"}, durationPattern
		s["maximum"], s["minimum"] = 0, 0 // 0 is the only duration without a unit
	case integer:
		s["type"] = "integer"
	case number:
		s["type"] = "number"
	case boolean:
		s["type"] = "boolean"
	}
	if values := b.docs[k.path].values; values != nil && k.kind == text {
		s["enum"] = values
	}
	return s
}

// defaultsOf are the settings of a kind of handler of which nothing is said.
func defaultsOf(k handler.Kind) reflect.Value {
	s, err := k.Decode(func(any) error { return nil })
	if err != nil {
		panic(err) // of a kind that makes an error of nothing
	}
	return reflect.ValueOf(s.WithDefaults().Config())
}

// one is an object with exactly one known key.
func one(name string, value map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": map[string]any{name: value}, "required": []string{name}, "additionalProperties": false}
}

// defaultOf is the default of a scalar as a file would say it. What a file need not say has none.
func defaultOf(k *key, v reflect.Value) (any, bool) {
	if !v.IsValid() { // a pointer whose nil is the default
		return nil, false
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil, false
		}
		v = v.Elem()
	}
	switch k.kind {
	case duration:
		return formatDuration(time.Duration(v.Int())), true
	case textual:
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			text, err := m.MarshalText()
			return string(text), err == nil && len(text) > 0
		}
	case text:
		return v.String(), v.String() != ""
	case integer, number, boolean:
		return v.Interface(), true
	}
	return nil, false
}

// formatDuration is Duration.String without the parts that are zero: 10m and not 10m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
