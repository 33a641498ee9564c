package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/eventkind"
)

// What a bus reports is stored, and the newest of some subjects are read back, oldest first.
func TestStored(t *testing.T) {
	nc, _, stream := storing(t)
	stored := func(subjects []string, since time.Time, limit int) (texts []string) {
		t.Helper()
		list, err := Stored(t.Context(), stream, subjects, since, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			var e event.Event
			if err := json.Unmarshal(m.Data, &e); err != nil || e.ID == "" || e.Subject() != m.Subject {
				t.Fatalf("%+v on %s, %v", e, m.Subject, err)
			}
			texts = append(texts, e.Text)
		}
		return texts
	}
	if list := stored(nil, time.Time{}, 10); list != nil {
		t.Errorf("in an empty stream: %v", list)
	}
	has := func(n uint64) (last time.Time) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			info, err := stream.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if info.State.Msgs == n {
				return info.State.LastTime
			}
		}
		t.Fatalf("the stream has not %d events", n)
		return last
	}
	var half time.Time
	for i := range 40 {
		if i == 20 {
			half = has(20).Add(time.Nanosecond)
		}
		e := event.Event{Kind: []event.Kind{eventkind.DeadLetter, eventkind.KeyWaiting}[i%2], Service: "relay", Instance: "a", Time: time.Now(), Data: event.Data{Route: "billing", Text: fmt.Sprint(i)}}
		if err := Publish(nc, e); err != nil {
			t.Fatal(err)
		}
	}
	has(40)
	dead := event.Event{Kind: eventkind.DeadLetter, Service: "relay", Data: event.Data{Route: "billing"}}.Subject()
	for name, c := range map[string]struct {
		got  []string
		want string
	}{
		"all":        {stored(nil, time.Time{}, 100)[37:], "[37 38 39]"},
		"the newest": {stored(nil, time.Time{}, 3), "[37 38 39]"},
		"of a kind":  {stored([]string{dead}, time.Time{}, 3), "[34 36 38]"},
		"since then": {stored([]string{dead}, half, 100), "[20 22 24 26 28 30 32 34 36 38]"},
	} {
		if got := fmt.Sprint(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The metrics of a bus count what it published, by kind, and what it could not.
func TestBus_Collect(t *testing.T) {
	s := &sink{}
	b := NewBus("relay", "a", func(why string) string { return why }, s.publish)
	b.send(event.Event{Kind: eventkind.Audit})
	s.err = errors.New("the connection is away")
	b.send(event.Event{Kind: eventkind.Audit})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{b})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, n := map[string]float64{}, 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n++
			got[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	if got["relay_events_total"] != 2 || got["relay_events_dropped_total"] != 1 || n != len(event.Kinds())+1 {
		t.Errorf("%d metrics: %v", n, got)
	}
}

type collector struct{ b *Bus }

func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }
func (c collector) Collect(ch chan<- prometheus.Metric) { c.b.Collect(ch) }
