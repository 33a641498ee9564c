package chaos

import (
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// The checker bites when one message among many is started once more than its script and the faults that it met explain, whatever
// the sum of all messages is.
func TestCheck_startsOfEachMessage(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	kill, late, before := &Fault{At: at(1)}, &Fault{At: at(100)}, &Fault{At: at(-100)}
	forgets := &Fault{At: at(1), Acks: true}
	for name, tc := range map[string]struct {
		script ledger.Script
		starts int
		faults []*Fault
		wrong  bool
	}{
		"once":                                     {ledger.Script{}, 1, nil, false},
		"twice, without a fault":                   {ledger.Script{}, 2, nil, true},
		"twice, with a kill":                       {ledger.Script{Do: "ok"}, 2, []*Fault{kill}, false},
		"three times, with one kill":               {ledger.Script{}, 3, []*Fault{kill}, true},
		"three times, with two":                    {ledger.Script{}, 3, []*Fault{kill, kill}, false},
		"twice, with a fault after its last":       {ledger.Script{}, 2, []*Fault{late}, true},
		"twice, with a fault long before":          {ledger.Script{}, 2, []*Fault{before}, true},
		"fails once":                               {ledger.Script{Do: "fail", Until: 1}, 2, nil, false},
		"fails once, and starts three times":       {ledger.Script{Do: "fail", Until: 1}, 3, nil, true},
		"what the server forgot begins anew":       {ledger.Script{Do: "fail", Until: 1}, 5, []*Fault{forgets}, false},
		"but not more often":                       {ledger.Script{Do: "fail", Until: 1}, 6, []*Fault{forgets}, true},
		"a script that says nothing of its starts": {ledger.Script{Do: "panic"}, 3, nil, false},
		"but not more than there are attempts":     {ledger.Script{Do: "panic"}, 4, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pub{Script: tc.script}
			var runs []*ledger.Run
			for i := range tc.starts {
				runs = append(runs, &ledger.Run{Start: at(2 * i), End: at(2*i + 1), OK: i == tc.starts-1})
			}
			r := &Report{Wrong: map[Class][]string{}}
			new(World).judge(r, Expect{Each: true, MaxAttempts: 3}, p, runs, nil, tc.faults)
			if bites := len(r.Wrong[Attempts]) > 0; bites != tc.wrong {
				t.Errorf("%d starts, faults %d: %v", tc.starts, len(tc.faults), r.Wrong)
			}
		})
	}
}

// A kill left a second delivery of the message. The next kill met both: each comes again.
func TestCheck_aFaultCostsAStartForEachDeliveryThatItMeets(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	first, next := &Fault{At: at(1010)}, &Fault{At: at(3020)}
	for name, tc := range map[string]struct {
		starts [][2]int // when, and which attempt
		wrong  bool
	}{
		"one delivery":                   {[][2]int{{0, 1}, {1000, 2}, {3000, 3}, {5000, 3}}, false},
		"two deliveries":                 {[][2]int{{0, 1}, {1000, 2}, {3000, 3}, {3010, 2}, {5000, 3}, {5010, 2}}, false},
		"and once more":                  {[][2]int{{0, 1}, {1000, 2}, {3000, 3}, {3010, 2}, {5000, 3}, {5010, 2}, {6000, 2}}, true},
		"the second was not beside them": {[][2]int{{0, 1}, {1000, 2}, {2000, 2}, {3000, 3}, {5000, 3}, {5010, 2}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var runs []*ledger.Run
			for _, s := range tc.starts {
				runs = append(runs, &ledger.Run{Start: at(s[0]), End: at(s[0] + 5), Attempt: s[1]})
			}
			r := &Report{Wrong: map[Class][]string{}}
			r.judgeStarts(Expect{Each: true, MaxAttempts: 3}, &Pub{Script: ledger.Script{Do: "fail"}}, runs, []*Fault{first, next}, 0)
			if bites := len(r.Wrong[Attempts]) > 0; bites != tc.wrong {
				t.Errorf("%v", r.Wrong)
			}
		})
	}
}

// A kill between the copy that was parked and the acknowledgement has the message come again. When the copy is through by then, it begins anew.
func TestCheck_startsOfAMessageThatWasParkedAndNotAcknowledged(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	for name, tc := range map[string]struct {
		oks    []bool
		faults []*Fault
		wrong  bool
	}{
		"it begins anew once":            {[]bool{false, true, false, true}, []*Fault{{At: at(1)}}, false},
		"not more often":                 {[]bool{false, true, false, true, false, true}, []*Fault{{At: at(1)}}, true},
		"not without a fault":            {[]bool{false, true, false, true}, nil, true},
		"not when it was not through":    {[]bool{false, false, false, true}, []*Fault{{At: at(1)}}, true},
		"not when the fault was not its": {[]bool{false, true, false, true}, []*Fault{{At: at(-20)}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var runs []*ledger.Run
			for i, ok := range tc.oks {
				runs = append(runs, &ledger.Run{Start: at(2 * i), End: at(2*i + 1), OK: ok})
			}
			r := &Report{Wrong: map[Class][]string{}}
			new(World).judge(r, Expect{Each: true, MaxAttempts: 3}, &Pub{Script: ledger.Script{Do: "fail", Until: 1}}, runs, nil, tc.faults)
			if bites := len(r.Wrong[Attempts]) > 0; bites != tc.wrong {
				t.Errorf("%v", r.Wrong)
			}
		})
	}
}
