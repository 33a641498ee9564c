package provision

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"
)

func drawDurable(t *rapid.T) Durable {
	d := Durable{Name: "billing", AckWait: time.Duration(rapid.IntRange(1, 60).Draw(t, "ack wait")) * time.Second, Mark: drawMark(t)}
	d.Filtered = rapid.Bool().Draw(t, "filtered")
	return d
}

func drawMark(t *rapid.T) Mark {
	subjects := rapid.SampledFrom([]string{"orders.>", "orders.*", "orders.eu", "orders.us", "bills.>", "bills.eu"})
	return Mark{Service: rapid.SampledFrom([]string{"relay", "other"}).Draw(t, "service"), Routes: rapid.MapOfN(
		rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SliceOfNDistinct(subjects, 1, 3, rapid.ID[string]), 1, 3,
	).Draw(t, "routes")}
}

// Whatever a durable was, once it is changed as a judgement says nothing is to be changed any more, and no route that it was
// ever for has lost its subjects.
func TestJudge_whatIsChangedIsAsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, now := drawDurable(t), drawDurable(t)
		on := Stream{Subjects: rapid.SampledFrom([][]string{nil, {"orders.>"}, {"orders.>", "bills.>"}}).Draw(t, "stream"), Unknown: rapid.Bool().Draw(t, "unknown")}
		have := before.Wanted(on.Subjects)
		have.RateLimit = rapid.SampledFrom([]uint64{0, 1000}).Draw(t, "rate limit")
		have.MaxDeliver = rapid.SampledFrom([]int{-1, 5}).Draw(t, "max deliver")
		which := rapid.SampledFrom([]Routes{Ever, Only}).Draw(t, "which")
		c := now.Judge(have, on, which)
		changed := Changed(have, c.Want)
		if on.Unknown { // a durable that has just been widened is given a filter at the next look
			changed = Changed(changed, now.Judge(changed, on, which).Want)
		}
		if again := now.Judge(changed, on, which); len(again.Differs()) > 0 || again.Own {
			t.Fatalf("changed, and still: %q, own %v", again.Differs(), again.Own)
		}
		if c.Own && before.Mark.Service != now.Mark.Service {
			t.Fatal("another service's durable counts as own")
		}
		if which == Ever && before.Mark.Service == now.Mark.Service {
			held := MarkOf(changed.Metadata)
			for name, patterns := range before.Mark.Routes {
				if kept := reduce(slices.Concat(held.Routes[name], patterns)); !slices.Equal(kept, held.Routes[name]) {
					t.Fatalf("route %s had %q and has %q", name, patterns, held.Routes[name])
				}
			}
		}
	})
}

// What a person set is a person's to change: relay itself only ever changes which routes its durable is for.
func TestJudge_whatAPersonSetIsNotOwn(t *testing.T) {
	d := Durable{Name: "billing", AckWait: time.Second, Mark: Mark{Service: "relay", Routes: map[string][]string{"a": {"orders.>"}}}}
	on := Stream{Subjects: []string{"orders.>", "bills.>"}}
	for name, change := range map[string]func(*jetstream.ConsumerConfig){
		"max_deliver": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"ack_wait":    func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour },
		"a filter":    func(c *jetstream.ConsumerConfig) { setFilters(c, []string{"orders.eu"}) },
		"ack_policy":  func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckNonePolicy },
	} {
		have := d.Wanted(on.Subjects)
		change(&have)
		if c := d.Judge(have, on, Ever); c.Own || len(c.Differs()) != 1 {
			t.Errorf("%s: own %v, differs %q", name, c.Own, c.Differs())
		}
	}
}

func TestFloor_comesBackFromMetadata(t *testing.T) {
	f := Floor{Durable: "billing", Stream: 7, Seq: 42, At: 1}
	metadata := f.Over(map[string]string{"mine": "too"})
	got, ok := FloorOf(metadata)
	if diff := cmp.Diff(f, got); !ok || diff != "" || metadata["mine"] != "too" {
		t.Errorf("%v %v: %s", metadata, ok, diff)
	}
	if later := (Floor{Durable: "billing", Stream: 7, Seq: 42, At: 2}); !f.Same(later) || f.Same(Floor{Durable: "billing", Stream: 8, Seq: 42}) {
		t.Error("the same floor is not told from another one")
	}
	for _, text := range []string{"", "billing", "billing x 1 1"} {
		if _, ok := FloorOf(map[string]string{markFloor: text}); ok {
			t.Errorf("%q is a floor", text)
		}
	}
}

// A setting that no durable of relay's should have, such as headers_only, made a durable differ from itself, and adopting it never ended.
func TestSame_regressionADurableIsTheSameAsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := drawDurable(t).Wanted([]string{"orders.>"})
		have.HeadersOnly, have.RateLimit, have.InactiveThreshold = rapid.Bool().Draw(t, "headers only"), uint64(rapid.IntRange(0, 9).Draw(t, "rate")), time.Minute
		have.BackOff = []time.Duration{time.Second}
		again := have
		again.Metadata = map[string]string{"_nats.server.version": "2.15.2"}
		for k, v := range have.Metadata {
			again.Metadata[k] = v
		}
		if !Same(have, again) {
			t.Fatalf("%+v is another one", have)
		}
		again.AckWait++
		if Same(have, again) {
			t.Fatal("another ack wait is the same")
		}
	})
}
