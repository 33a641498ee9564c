package planned

import (
	"encoding/json"
	"testing"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orphans"
)

func TestPlan_refused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plan Plan
		want bool
	}{
		"nothing":         {Plan{}, false},
		"a fault":         {Plan{Faults: []string{"x"}}, true},
		"a durable":       {Plan{Durables: []Durable{{Does: Made}, {Does: Refused}}}, true},
		"goes on":         {Plan{Durables: []Durable{{Does: Stays}, {Does: Changed}}}, false},
		"repeats":         {Plan{Durables: []Durable{{Does: Made, Again: []control.Again{{Messages: 1}, {Messages: 2, All: true}}}}}, true},
		"by its sequence": {Plan{Durables: []Durable{{Does: Made, Again: []control.Again{{Messages: 1}}}}}, false},
	} {
		if got := c.plan.Refused(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestPlan_sort(t *testing.T) {
	t.Parallel()
	p := Plan{Durables: []Durable{{Stream: "B", Durable: "a"}, {Stream: "A", Durable: "c"}, {Stream: "A", Durable: "b"}}}
	p.Sort()
	for i, want := range []string{"Ab", "Ac", "Ba"} {
		if got := p.Durables[i].Stream + p.Durables[i].Durable; got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

// Programs read relay plan --json.
func TestPlan_json(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Plan{
		`{"durables":[],"left":[],"faults":[]}`: {Durables: []Durable{}, Left: []orphans.Orphan{}, Faults: []string{}},
		`{"streams":[{"stream":"S","subjects":["s"]}],"durables":[{"stream":"S","durable":"d","routes":["r"],"does":"made","waits":1,"outstanding":0,"start":"all"}],"left":null,"faults":null}`: {
			Streams: []Stream{{"S", []string{"s"}}}, Durables: []Durable{{Stream: "S", Durable: "d", Routes: []string{"r"}, Does: Made, Waits: 1, Start: "all"}},
		},
		`{"durables":[{"stream":"S","durable":"d","routes":["r"],"service":"o","does":"changed","why":["w"],"waits":0,"outstanding":2,"skipped":3,"catch_up":[{"route":"r","subjects":"s","messages":4,"skipped":5}],"unwanted":["u"]}],` +
			`"divided":[{"route":"p","does":"stays","stream":"G","partitions":6,"before":6}],"left":[],"faults":["f"]}`: {
			Durables: []Durable{{
				Stream: "S", Durable: "d", Routes: []string{"r"}, Service: "o", Does: Changed, Why: []string{"w"}, Outstanding: 2, Skipped: 3,
				CatchUp: []CatchUp{{"r", "s", 4, 5}}, Unwanted: []string{"u"},
			}},
			Divided: []Divided{{Route: "p", Does: Stays, Stream: "G", Partitions: 6, Before: 6}}, Left: []orphans.Orphan{}, Faults: []string{"f"},
		},
	} {
		if got, err := json.Marshal(p); err != nil || string(got) != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
}
