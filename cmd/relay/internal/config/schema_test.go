package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func schema(t *testing.T) map[string]any {
	t.Helper()
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// conforms is as much of JSON Schema as Schema writes. It returns the first thing that does not conform.
func conforms(all, s map[string]any, v any, at string) string {
	if ref, ok := s["$ref"].(string); ok {
		if msg := conforms(all, all["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any), v, at); msg != "" {
			return msg
		}
	}
	if one, ok := s["oneOf"].([]any); ok {
		fits := 0
		for _, alternative := range one {
			if conforms(all, alternative.(map[string]any), v, at) == "" {
				fits++
			}
		}
		if fits != 1 {
			return fmt.Sprintf("%s: %v fits %d alternatives", at, v, fits)
		}
	}
	if c, ok := s["const"]; ok && c != v {
		return fmt.Sprintf("%s: %v is not %v", at, v, c)
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		return fmt.Sprintf("%s: %v is none of %v", at, v, enum)
	}
	typ := "null"
	switch v := v.(type) {
	case map[string]any:
		typ = "object"
		properties, _ := s["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below, ok := properties[name].(map[string]any)
			if !ok {
				if below, ok = s["additionalProperties"].(map[string]any); !ok && s["$ref"] == nil && s["oneOf"] == nil {
					return at + "." + name + ": unknown"
				}
			}
			if ok {
				if msg := conforms(all, below, v[name], at+"."+name); msg != "" {
					return msg
				}
			}
		}
		for _, name := range anys(s["required"]) {
			if _, ok := v[name.(string)]; !ok {
				return fmt.Sprintf("%s.%v: missing", at, name)
			}
		}
	case []any:
		typ = "array"
		for i, item := range v {
			if msg := conforms(all, s["items"].(map[string]any), item, fmt.Sprintf("%s[%d]", at, i)); msg != "" {
				return msg
			}
		}
	case string:
		typ = "string"
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			return fmt.Sprintf("%s: %q does not match %s", at, v, p)
		}
	case bool:
		typ = "boolean"
	case float64:
		typ = "number"
		if m, ok := s["maximum"].(float64); ok && v > m {
			return fmt.Sprintf("%s: %v is above %v", at, v, m)
		}
	case int:
		return conforms(all, s, float64(v), at)
	}
	var types []any
	switch t := s["type"].(type) {
	case string:
		types = []any{t}
	case []any:
		types = t
	default:
		return ""
	}
	if !slices.Contains(types, any(typ)) && !(typ == "number" && slices.Contains(types, any("integer"))) {
		return fmt.Sprintf("%s: %v is a %s, not %v", at, v, typ, types)
	}
	return ""
}

func anys(v any) []any { list, _ := v.([]any); return list }

func TestSchema_takesTheExample(t *testing.T) {
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]any
	if err := yaml.Unmarshal(data, &example); err != nil {
		t.Fatal(err)
	}
	s := schema(t)
	if msg := conforms(s, s, example, ""); msg != "" {
		t.Error(msg)
	}
}

func TestSchema_refuses(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]string{
		"servise: relay":                   ".servise: unknown",
		"drain: 30":                        ".drain: 30 is above 0",
		"drain: 1d":                        `.drain: "1d" does not match`,
		"dlq: {max_bytes: lots}":           `.dlq.max_bytes: "lots" does not match`,
		"log: {level: loud}":               ".log.level: loud is none of",
		"routes: [{name: a}]":              ".routes[0].subjects: missing",
		"defaults: {retry: {polciy: x}}":   ".defaults.retry.polciy: unknown",
		"defaults: {start: {sequence: 1}}": ".defaults.start: map[sequence:1] fits 0",
		"defaults: {handler: drop}":        ".defaults.handler: drop fits 0",
		"nats: {token: {path: x}}":         ".nats.token: map[path:x] fits 0",
		"defaults: {concurrency: '8'}":     ".defaults.concurrency: 8 is a string",
	} {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if msg := conforms(s, s, v, ""); !strings.HasPrefix(msg, want) {
			t.Errorf("%s: %q, want %q", text, msg, want)
		}
	}
}

func TestSchema_hasEveryKeyWithItsDefault(t *testing.T) {
	s := schema(t)
	byPath := map[string]map[string]any{}
	var walk func(path string, s map[string]any)
	walk = func(path string, node map[string]any) {
		if _, ok := node["$ref"]; ok {
			if path == "defaults" {
				byPath[path] = node
				return
			}
			node = s["$defs"].(map[string]any)["route"].(map[string]any)
		}
		if byPath[path] == nil {
			byPath[path] = node
		}
		for _, alternative := range anys(node["oneOf"]) {
			if alternative.(map[string]any)["properties"] != nil && strings.HasSuffix(path, "handler") {
				walk(path, alternative.(map[string]any))
			}
		}
		if items, ok := node["items"].(map[string]any); ok {
			walk(path, items)
		}
		if entries, ok := node["additionalProperties"].(map[string]any); ok && path == "limits" {
			walk(path, entries)
		}
		properties, _ := node["properties"].(map[string]any)
		for name, below := range properties {
			walk(join(path, name), below.(map[string]any))
		}
	}
	walk("", s)
	defaultValues := map[string]any{}
	for _, p := range paths(newBook(nil).root) {
		node := byPath[p]
		if node == nil {
			t.Errorf("%s is missing", p)
			continue
		}
		if node["description"] != newBook(nil).docs[p].text {
			t.Errorf("%s: description %v", p, node["description"])
		}
		defaultValues[p] = node["default"]
	}
	// The example says the same, where a line is not an example of its own.
	own := []string{
		"streams.replicas", "streams.max_age", "streams.max_bytes", "streams.max_msgs", "limits.concurrency", // what a user sets instead of zero
		"routes.durable", "routes.dead_letter.prefix", "routes.retry.slot", "routes.supervisor.restart.slot", // made of other keys
	}
	for _, k := range exampleKeys(t) {
		want := defaultValues[k.path]
		if want == nil || slices.Contains(own, k.path) {
			continue
		}
		if got := strings.Trim(k.value, `"`); got != plainNumber(want) {
			t.Errorf("%s: %s in the example, %v in the schema", k.path, got, want)
		}
	}
}

func plainNumber(v any) string {
	if f, ok := v.(float64); ok && f == float64(int(f)) {
		return fmt.Sprint(int(f))
	}
	return fmt.Sprint(v)
}
