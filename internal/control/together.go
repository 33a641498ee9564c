package control

import (
	"reflect"
	"slices"
	"time"
)

// severity orders the states of the parts of a route: it is in that of the worst of them.
var severity = []string{
	StateStandby, StateFlowing, StateLimited, StateProbing, StateWaiting, StateStarting, StatePaused, StateStalled, StateSuspended, StateStopped, StateDisconnected, StateDraining,
}

// Together is the status of a route from those of its parts, of which there must be one at least: it is in the worst of their states. So many keys are
// listed at most.
func Together(parts []RouteStatus, keys int) RouteStatus {
	s := parts[0]
	s.Keys = map[string]int{}
	s.Again, s.Waiting = nil, nil
	worst := -1
	for i, p := range parts {
		if at := slices.Index(severity, p.State); at > worst {
			worst, s.State, s.Why, s.Since, s.Until = at, p.State, p.Why, p.Since, p.Until
		}
		if i > 0 {
			addNumbers(reflect.ValueOf(&s).Elem(), reflect.ValueOf(p))
		}
		for state, n := range p.Keys {
			s.Keys[state] += n
		}
		s.KeyKnown = s.KeyKnown || p.KeyKnown
		s.Waiting = append(s.Waiting, p.Waiting...)
	}
	slices.SortStableFunc(s.Waiting, func(a, b KeyStatus) int { return a.Since.Compare(b.Since) })
	if n := len(s.Waiting) - keys; n > 0 {
		s.Waiting, s.WaitingMore = s.Waiting[:keys], s.WaitingMore+n
	}
	return s
}

// addNumbers adds the numbers in a struct to those of another one. What all parts share is not added.
func addNumbers(to, from reflect.Value) {
	for i := range to.NumField() {
		t, f := to.Field(i), from.Field(i)
		if to.Type().Field(i).Name == "Stored" || to.Type().Field(i).Name == "Parked" || !t.CanSet() {
			continue
		}
		switch t.Kind() {
		case reflect.Int:
			t.SetInt(t.Int() + f.Int())
		case reflect.Uint64:
			t.SetUint(t.Uint() + f.Uint())
		case reflect.Pointer:
			if f.IsNil() || t.Type().Elem().Kind() != reflect.Struct || t.Type().Elem() == reflect.TypeFor[time.Time]() {
				continue
			}
			sum := reflect.New(t.Type().Elem())
			if t.IsNil() {
				sum.Elem().Set(f.Elem())
			} else {
				sum.Elem().Set(t.Elem())
				addNumbers(sum.Elem(), f.Elem())
			}
			t.Set(sum)
		}
	}
}
