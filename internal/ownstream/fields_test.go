package ownstream

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// A field that a newer nats.go adds fails here until somebody decides: compare it in fields, or say in left why not.
func TestFields_everyOneIsDecided(t *testing.T) {
	t.Parallel()
	decided := maps.Clone(left)
	for _, f := range fields {
		if _, twice := left[f.name]; twice {
			t.Errorf("%s is in fields and in left", f.name)
		}
		decided[f.name] = "compared"
	}
	for name := range known() {
		if decided[name] == "" {
			t.Errorf("nobody decided about %s", name)
		}
		delete(decided, name)
	}
	for name := range decided {
		t.Errorf("a stream has no field %s", name)
	}
}

// Whoever makes one of relay's own streams first, or edits it, gets nothing out of it and puts nothing into it.
func TestEnsure_setsBackWhatIsDangerous(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for name, evil := range map[string]func(*jetstream.StreamConfig){
		"republish": func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: "own.wait.>", Destination: "$JS.API.>"}
		},
		"sources": func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "ORDERS"}} },
		"subject_transform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "own.wait.>", Destination: "own.due.>"}
		},
		"allow_rollup_hdrs": func(c *jetstream.StreamConfig) { c.AllowRollup = true },
		"allow_atomic":      func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = true },
		"no_ack":            func(c *jetstream.StreamConfig) { c.NoAck = true },
	} {
		want := jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}, Storage: jetstream.FileStorage, Replicas: 1}
		made := want
		evil(&made)
		if _, err := js.CreateStream(t.Context(), made); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, how := range []string{"made", "edited"} {
			s, err := Ensure(t.Context(), js, want, log)
			if err != nil {
				t.Errorf("%s, %s: %v", name, how, err)
				break
			}
			for _, f := range fields {
				if have := s.CachedInfo().Config; f.name == name && f.differ(&have, &want, AtStart) {
					t.Errorf("%s, %s: it is %v still", name, how, f.get(&have))
				}
			}
			if _, err := js.UpdateStream(t.Context(), made); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := js.DeleteStream(t.Context(), "OWN"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OWN", Mirror: &jetstream.StreamSource{Name: "ORDERS"}}); err != nil {
		t.Fatal(err)
	}
	_, err := Ensure(t.Context(), js, jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}, Storage: jetstream.FileStorage}, log)
	if fault, ok := err.(*Error); !ok || !fault.Danger || !strings.Contains(err.Error(), "stream OWN: mirror is ORDERS, but must be none") ||
		!strings.Contains(err.Error(), "nats stream rm") {
		t.Errorf("%v", err)
	}
}

// What a newer server knows, and this client does not.
func TestUnknown_settingsOfNewerServers(t *testing.T) {
	t.Parallel()
	list, err := strangers([]byte(`{"config":{"name":"OWN","republish":{"src":">","dest":"x"},"tee":"ORDERS","off":false,"none":[],"copies":2}}`))
	if want := []setting{{"copies", "2"}, {"tee", `"ORDERS"`}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := strangers([]byte(`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`)); err == nil {
		t.Error("an error of the server counts as an answer")
	}
	err = refused(jetstream.StreamConfig{Name: "OWN"}, jetstream.StreamConfig{}, nil, list, jetstream.ErrStreamNotFound)
	if !strings.Contains(err.Error(), "stream OWN: copies is 2, but must be unset") || !strings.Contains(err.Error(), "newer version of relay") {
		t.Error(err)
	}
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}}); err != nil {
		t.Fatal(err)
	}
	if list, err := unknown(t.Context(), js, "OWN"); err != nil || len(list) > 0 {
		t.Errorf("the server that is built in has settings that nats.go does not know: %v, %v", list, err)
	}
}
