package reload

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestChange_Faults(t *testing.T) {
	t.Parallel()
	there := []string{"a", "b", "c"}
	for _, test := range []struct {
		change Change
		want   []string
	}{
		{Change{Add: []string{"new"}, Update: []string{"a"}, Remove: []string{"b"}}, nil},
		{Change{Add: []string{"a"}}, []string{"a: this instance already has a route of this name: update it, or remove it first"}},
		{Change{Update: []string{"new"}}, []string{"new: this instance has no route of this name: add it"}},
		{Change{Remove: []string{"new"}}, []string{"new: is not there"}},
		{Change{Update: []string{"a"}, Remove: []string{"a"}}, []string{"a: is named twice in one change"}},
		{Change{Add: []string{"new", "new"}}, []string{"new: is named twice in one change"}},
	} {
		var got []string
		test.change.Faults(there, func(route, text string) { got = append(got, route+": "+text) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.change, got, test.want)
		}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	units := []Unit{{"S/one", []string{"a"}}, {"S/two", []string{"b", "c"}}, {"S/three", []string{"d"}}}
	for what, test := range map[string]struct {
		change Change
		meets  Running
		want   Decision
	}{
		"nothing": {Change{}, Running{}, Decision{}},
		"a route of its own": {
			Change{Update: []string{"a"}}, Running{Places: map[string]string{"a": "S/one"}},
			Decision{Ends: []int{0}, Begin: []string{"a"}},
		},
		"in place": {
			Change{Update: []string{"b"}}, Running{InPlace: []string{"b"}},
			Decision{InPlace: []string{"b"}},
		},
		"in place, beside one that ends": {
			Change{Update: []string{"b"}, Remove: []string{"c"}}, Running{InPlace: []string{"b"}},
			Decision{Ends: []int{1}, Begin: []string{"b"}},
		},
		"one of two that share a durable": {
			Change{Update: []string{"c"}}, Running{Places: map[string]string{"c": "S/two"}},
			Decision{Ends: []int{1}, Begin: []string{"b", "c"}, Anew: []string{"b"}},
		},
		"a new one on a durable that there is": {
			Change{Add: []string{"new"}}, Running{Places: map[string]string{"new": "S/three"}},
			Decision{Ends: []int{2}, Begin: []string{"d", "new"}, Anew: []string{"d"}},
		},
		"to the durable of others": {
			Change{Update: []string{"a"}}, Running{Places: map[string]string{"a": "S/two"}},
			Decision{Ends: []int{0, 1}, Begin: []string{"a", "b", "c"}, Anew: []string{"b", "c"}},
		},
		"one that has no unit yet": {
			Change{Update: []string{"unplaced"}}, Running{Places: map[string]string{"unplaced": "S/four"}},
			Decision{Begin: []string{"unplaced"}},
		},
	} {
		test.meets.Units = units
		if got := test.change.Decide(test.meets); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", what, got, test.want)
		}
	}
}

// Whatever changes: the routes of a unit begin and end together, nobody begins twice, and who is not named and shares no durable goes on.
func TestDecide_rapid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		place := rapid.SampledFrom([]string{"S/1", "S/2", "S/3", "S/4", "T/1"})
		at := make(map[string]string) // where each route is
		byPlace := make(map[string][]string)
		var there []string
		for i := range rapid.IntRange(0, 8).Draw(rt, "routes") {
			name, p := fmt.Sprint("r", i), place.Draw(rt, "place")
			at[name] = p
			byPlace[p] = append(byPlace[p], name)
			there = append(there, name)
		}
		var meets Running
		for _, p := range []string{"S/1", "S/2", "S/3", "S/4", "T/1"} {
			if len(byPlace[p]) > 0 {
				meets.Units = append(meets.Units, Unit{p, byPlace[p]})
			}
		}
		meets.Places = make(map[string]string)
		var c Change
		for _, name := range there {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				c.Remove = append(c.Remove, name)
			case 1:
				c.Update, meets.InPlace = append(c.Update, name), append(meets.InPlace, name)
			case 2:
				c.Update = append(c.Update, name)
				meets.Places[name] = place.Draw(rt, "new place")
			}
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "added") {
			name := fmt.Sprint("new", i)
			c.Add = append(c.Add, name)
			meets.Places[name] = place.Draw(rt, "new place")
		}
		c.Faults(there, func(route, text string) { rt.Fatal(route, text) })

		d := c.Decide(meets)
		ended := make(map[string]bool)
		for _, i := range d.Ends {
			for _, name := range meets.Units[i].Routes {
				ended[name] = true
			}
		}
		begins, inPlace := setOf(d.Begin), setOf(d.InPlace)
		if len(begins) != len(d.Begin) {
			rt.Fatal("one begins twice", d.Begin)
		}
		after := make(map[string]int) // how many units of a durable there are when all is done
		for i, u := range meets.Units {
			if !slices.Contains(d.Ends, i) {
				after[u.Place]++
			}
		}
		for name := range begins {
			p, moved := meets.Places[name]
			if !moved {
				p = at[name]
			}
			if after[p] > 0 {
				rt.Fatalf("%s begins on %s, whose unit did not end", name, p)
			}
		}
		for _, name := range there {
			named, removed := slices.Contains(c.Names(), name), slices.Contains(c.Remove, name)
			switch {
			case removed && (begins[name] || !ended[name]):
				rt.Fatalf("%s is removed: begins %v, ended %v", name, begins[name], ended[name])
			case !removed && ended[name] != begins[name]:
				rt.Fatalf("%s: ended %v, begins %v", name, ended[name], begins[name])
			case inPlace[name] && ended[name]:
				rt.Fatalf("%s changes in place and ends", name)
			case named && !removed && !inPlace[name] && !begins[name]:
				rt.Fatalf("%s does not change", name)
			case slices.Contains(d.Anew, name) != (begins[name] && !named):
				rt.Fatalf("%s is told otherwise: %v", name, d.Anew)
			}
		}
		for _, name := range c.Add {
			if !begins[name] {
				rt.Fatalf("%s does not begin", name)
			}
		}
		line := Line(there, slices.Sorted(maps.Keys(ended)), d.Begin)
		if slices.Contains(line, "") || len(setOf(line)) != len(line) || len(line) != len(there)-len(c.Remove)+len(c.Add) {
			rt.Fatalf("line %v", line)
		}
		stay := slices.DeleteFunc(slices.Clone(there), func(name string) bool { return slices.Contains(c.Remove, name) })
		if !slices.Equal(line[:len(stay)], stay) {
			rt.Fatalf("line %v of %v", line, stay)
		}
	})
}

func TestUnit_Awaits(t *testing.T) {
	t.Parallel()
	u := Unit{"S/one", []string{"a", "b"}}
	for _, test := range []struct {
		ended Unit
		want  bool
	}{
		{Unit{"S/one", []string{"z"}}, true},
		{Unit{"S/other", []string{"b"}}, true},
		{Unit{"S/other", []string{"c"}}, false},
	} {
		if got := u.Awaits(test.ended); got != test.want {
			t.Errorf("%+v: %v", test.ended, got)
		}
	}
}
