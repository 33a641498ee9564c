package generations

import (
	"testing"

	"github.com/relaymq/relay/internal/partition"
)

func streams(counts ...int) (list []*partition.Stream) {
	for i, count := range counts {
		list = append(list, &partition.Stream{Generation: partition.Generation{
			Service: "relay", Route: "billing", Number: i + 3, Layout: partition.Layout{Count: count, Stream: "ORDERS", Durable: "billing"},
		}})
	}
	return list
}

// Messages of former generations are handed over to the newest one, and those that generations between have come before.
func TestRoute_Parts(t *testing.T) {
	t.Parallel()
	if list := New(nil, "billing", nil).Parts(); len(list) > 0 {
		t.Errorf("parts of no generation: %v", list)
	}
	for _, p := range New(nil, "billing", streams(2)).Parts() {
		if p.HandsOver() || p.After || p.IsCopy() != (p.Number > 0) || p.Route != "billing" || p.Stream != "ORDERS" || p.Durable != "billing" {
			t.Errorf("of the only generation: %+v", p)
		}
	}
	parts := New(nil, "billing", streams(2, 3, 2)).Parts()
	var names []string
	for i := range parts {
		names = append(names, parts[i].Name())
	}
	want := []string{"billing-g3-0", "billing-g3-1", "billing-g4-0", "billing-g4-1", "billing-g4-2", "billing-g5-0", "billing-g5-1"}
	if len(parts) != len(want) {
		t.Fatalf("parts %q", names)
	}
	for i, p := range parts {
		newest := p.Of.Number == 5
		if names[i] != want[i] || p.HandsOver() == newest || !newest && p.To.Number != 5 || p.IsCopy() != (!newest || p.Number > 0) || p.After != (p.Number == 0) {
			t.Errorf("part %s: %+v", names[i], p)
		}
		if between := p.Of.Number == 3; len(p.Between) == 1 != between || between && p.Between[0].Number != 4 {
			t.Errorf("between %s and the newest are %v", names[i], p.Between)
		}
	}
}

// A part stays as it is when another generation begins only if it did not handle messages, or does so still.
func TestPart_Stays(t *testing.T) {
	t.Parallel()
	one, two, three := New(nil, "billing", streams(2)).Parts(), New(nil, "billing", streams(2, 2)).Parts(), New(nil, "billing", streams(2, 2, 2)).Parts()
	for what, c := range map[string]struct {
		was, next *Part
		want      bool
	}{
		"there is none":                      {nil, &one[0], false},
		"nothing changes":                    {&one[1], &one[1], true},
		"it is to hand over":                 {&one[1], &two[1], false},
		"it is to hand over to a newer one":  {&two[1], &three[1], false},
		"it hands over to the same":          {&three[1], &three[1], true},
		"it is the first, and no former one": {&two[2], &one[0], false},
	} {
		if got := c.was.Stays(c.next); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if none := (*Part)(nil); none.IsCopy() || none.HandsOver() {
		t.Error("a route without partitions is a part")
	}
}
