package division

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// route has so many parts, or is none with parts, and so has its parts.
type route struct {
	name  string
	parts int
	of    string // the route that it is a part of
}

// model is what runs.
type model struct {
	routes map[string]route    // as they are configured
	runs   map[string]route    // parts, and routes without
	parts  map[string][]string // of routes with partitions
	stays  bool
}

func newModel(routes ...route) *model {
	m := &model{routes: map[string]route{}, runs: map[string]route{}, parts: map[string][]string{}}
	for _, rt := range routes {
		m.routes[rt.name] = rt
		for _, run := range divide(rt) {
			m.runs[run.name] = run
			if run.of != "" {
				m.parts[rt.name] = append(m.parts[rt.name], run.name)
			}
		}
	}
	return m
}

// divide is what runs of a route.
func divide(rt route) (list []route) {
	if rt.parts == 0 {
		return []route{rt}
	}
	for n := range rt.parts {
		list = append(list, route{fmt.Sprintf("%s-%d", rt.name, n), 0, rt.name})
	}
	return list
}

func (m *model) config() Config[route] {
	return Config[route]{
		Name:    func(rt route) string { return rt.name },
		Divides: func(rt route) bool { return rt.parts > 0 },
		Runs:    func(name string) bool { _, ok := m.routes[name]; return ok },
		Parts:   func(name string) ([]string, bool) { parts, ok := m.parts[name]; return parts, ok },
		Divide: func(rt route) ([]route, error) {
			if rt.parts > 9 {
				return nil, fmt.Errorf("route %s: too many partitions", rt.name)
			}
			return divide(rt), nil
		},
		Stays: func(route) bool { return m.stays },
		Fault: func(name, text string) error { return errors.New("route " + name + ": " + text) },
		Called: func(name string) string {
			if rt := m.runs[name]; rt.of != "" {
				return rt.of
			}
			return name
		},
	}
}

// Whatever changes: what runs then is what would run if it had been configured so from the beginning, and nothing begins that runs, nor changes or ends
// that does not.
func TestExpand_isWhatRunsThen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		draw := func(what string) (list []route) {
			for _, name := range names {
				if rapid.Bool().Draw(t, what+" "+name) {
					list = append(list, route{name: name, parts: rapid.IntRange(0, 4).Draw(t, "parts of "+name)})
				}
			}
			return list
		}
		before, after := newModel(draw("before")...), newModel(draw("after")...)
		var c Change[route]
		for _, name := range names {
			_, was := before.routes[name]
			rt, is := after.routes[name]
			switch {
			case is && was:
				c.Update = append(c.Update, rt)
			case is:
				c.Add = append(c.Add, rt)
			case was:
				c.Remove = append(c.Remove, name)
			}
		}
		e, err := Expand(c, before.config())
		if err != nil {
			t.Fatal(err)
		}
		runs := maps.Clone(before.runs)
		for _, name := range e.Remove {
			if _, ok := runs[name]; !ok {
				t.Fatalf("%s ends, and does not run", name)
			}
			delete(runs, name)
		}
		for _, rt := range e.Update {
			if _, ok := runs[rt.name]; !ok {
				t.Fatalf("%s changes, and does not run", rt.name)
			}
			runs[rt.name] = rt
		}
		for _, rt := range e.Add {
			if _, ok := runs[rt.name]; ok {
				t.Fatalf("%s begins, and runs", rt.name)
			}
			runs[rt.name] = rt
		}
		if !maps.Equal(runs, after.runs) {
			t.Fatalf("%v run, want %v", runs, after.runs)
		}
		for name := range before.parts {
			if _, still := after.parts[name]; still == slices.Contains(e.Undivided, name) {
				t.Fatalf("undivided are %v", e.Undivided)
			}
		}
		for name, head := range after.runs {
			if head.of == "" {
				head.of = name
			}
			if got := e.Called([]string{name, name}); !slices.Equal(got, []string{head.of}) {
				t.Fatalf("%s is called %v", name, got)
			}
		}
	})
}

// Parts that stay as they are do not change.
func TestExpand_stays(t *testing.T) {
	t.Parallel()
	m := newModel(route{name: "a", parts: 3})
	m.stays = true
	e, err := Expand(Change[route]{Update: []route{{name: "a", parts: 4}}}, m.config())
	if err != nil || len(e.Update) > 0 || len(e.Remove) > 0 || len(e.Add) != 1 || e.Add[0].name != "a-3" {
		t.Errorf("%+v, %v", e, err)
	}
}

// All that is wrong is said.
func TestExpand_faults(t *testing.T) {
	t.Parallel()
	m := newModel(route{name: "divided", parts: 3}, route{name: "plain"})
	_, err := Expand(Change[route]{
		Add:    []route{{name: "divided"}, {name: "plain", parts: 2}, {name: "many", parts: 10}},
		Update: []route{{name: "other", parts: 2}},
	}, m.config())
	want := strings.Join([]string{
		"route divided: this instance already has a route of this name: update it, or remove it first",
		"route plain: this instance already has a route of this name: update it, or remove it first",
		"route many: too many partitions",
		"route other: this instance has no route of this name: add it",
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
