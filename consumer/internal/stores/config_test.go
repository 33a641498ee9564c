package stores

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
)

func TestConfig_names(t *testing.T) {
	t.Parallel()
	c := Config{Service: "shop"}
	for want, have := range map[string]string{
		"SHOP_RETRY": c.RetryStream(), "SHOP_ATTEMPTS": c.AttemptsBucket(), "SHOP_INSTANCES": c.InstancesBucket(),
		"shop.dlq": c.DeadPrefix(""), "billing.dead": c.DeadPrefix("billing.dead"),
	} {
		if have != want {
			t.Errorf("%s, not %s", have, want)
		}
	}
}

// Each prefix is once in the configuration of the dead letters. That of the service is not among them: it is there anyway.
func TestConfig_deadLetters(t *testing.T) {
	t.Parallel()
	c := Config{Service: "shop", Instance: "a", Replicas: 3, Letters: Letters{Bounds{time.Hour, 10, 20}, dlq.OnFullDropOldest}}
	d := c.DeadLetters([]string{"", "x.dead", "shop.dlq", "y.dead", "x.dead"}, nil)
	if want := []string{"x.dead", "y.dead"}; !slices.Equal(d.Prefixes, want) {
		t.Errorf("prefixes %q, not %q", d.Prefixes, want)
	}
	if d.Service != "shop" || d.Instance != "a" || d.Replicas != 3 || d.MaxAge != time.Hour || d.MaxBytes != 10 || d.MaxMsgs != 20 || d.OnFull != dlq.OnFullDropOldest {
		t.Errorf("%+v", d)
	}
}

func TestConfig_streams(t *testing.T) {
	t.Parallel()
	always := []string{
		"KV_SHOP_ATTEMPTS", "KV_SHOP_INSTANCES", "KV_SHOP_JOBS", "KV_SHOP_LEDGER", "KV_SHOP_STATE", "OBJ_SHOP_DLQ_BODIES", "SHOP_DLQ", "SHOP_RETRY",
	}
	bare, full := Config{Service: "shop", Replicas: 3}, Config{Service: "shop", Replicas: 3, Events: &Bounds{time.Hour, 1, 2}, Archive: &Bounds{time.Minute, 3, 4}}
	if have := names(bare.Streams(nil)); !slices.Equal(have, always) {
		t.Errorf("%q, not %q", have, always)
	}
	all := append(full.Streams([]string{"x.dead"}), full.Fleet())
	want := slices.Sorted(slices.Values(append(always, "SHOP_EVENTS", "SHOP_ARCHIVE", "KV_SHOP_FLEET")))
	if have := names(all); !slices.Equal(have, want) {
		t.Errorf("%q, not %q", have, want)
	}
	for _, s := range all {
		if s.Replicas != 3 {
			t.Errorf("%s has %d replicas", s.Name, s.Replicas)
		}
		have := Bounds{s.MaxAge, s.MaxBytes, s.MaxMsgs}
		switch s.Name {
		case "SHOP_EVENTS":
			if have != *full.Events {
				t.Errorf("%s is bounded by %v", s.Name, have)
			}
		case "SHOP_ARCHIVE":
			if have != *full.Archive {
				t.Errorf("%s is bounded by %v", s.Name, have)
			}
		case "SHOP_DLQ":
			if !slices.Contains(s.Subjects, "x.dead.>") {
				t.Errorf("%s has subjects %q", s.Name, s.Subjects)
			}
		case "KV_SHOP_INSTANCES":
			if s.MaxAge == 0 {
				t.Errorf("%s keeps its entries for ever", s.Name)
			}
		}
	}
}

func names(list []jetstream.StreamConfig) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}
