package dlq

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

func TestOpen_makesAndKeeps(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	cfg := Config{Service: "Acme", MaxAge: time.Minute, MaxBytes: 1 << 20, Prefixes: []string{"dead.letters", "Acme.dlq"}}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := Open(t.Context(), js, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stream, err := js.Stream(t.Context(), "ACME_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	got := stream.CachedInfo().Config
	if !slices.Equal(got.Subjects, []string{"Acme.dlq.>", "dead.letters.>"}) {
		t.Errorf("subjects %q", got.Subjects)
	}
	if got.Retention != jetstream.LimitsPolicy || got.Storage != jetstream.FileStorage || got.Discard != jetstream.DiscardNew ||
		!got.AllowDirect || got.MaxAge != time.Minute || got.MaxBytes != 1<<20 || got.Duplicates != time.Minute {
		t.Errorf("got %+v", got)
	}
	bucket, err := js.ObjectStore(t.Context(), "ACME_DLQ_BODIES")
	if err != nil {
		t.Fatal(err)
	}
	status, err := bucket.Status(t.Context())
	if err != nil || status.TTL() != 0 || status.Storage() != jetstream.FileStorage {
		t.Errorf("bucket %+v, %v", status, err)
	}
}

func TestOpen_changesWhatIsSafe(t *testing.T) {
	s, js := setup(t, Config{Prefixes: []string{"old"}, MaxBytes: 1 << 20, MaxAge: time.Hour})
	put(t, s, entry(1))
	s, err := Open(t.Context(), js, Config{Prefixes: []string{"new"}, OnFull: OnFullDropOldest, MaxAge: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "new", entry(1)); err != nil {
		t.Error(err)
	}
	got := s.stream.CachedInfo().Config
	if !slices.Equal(got.Subjects, []string{"relay.dlq.>", "old.>", "new.>"}) || got.MaxBytes != -1 || got.MaxAge != time.Minute ||
		got.Discard != jetstream.DiscardNew { // relay itself drops the oldest
		t.Errorf("got %+v", got)
	}
	bucket, err := js.Stream(t.Context(), s.bucketStream())
	if err != nil || bucket.CachedInfo().Config.MaxBytes != -1 {
		t.Errorf("bucket of %d bytes, %v", bucket.CachedInfo().Config.MaxBytes, err)
	}
	if n := len(collect(t, s, Filter{})); n != 2 {
		t.Errorf("%d entries, want 2", n)
	}
}

func TestOpen_refusesTheRest(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	for field, change := range map[string]func(*jetstream.StreamConfig){
		"retention":   func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"storage":     func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"deny_delete": func(c *jetstream.StreamConfig) { c.DenyDelete = true },
		"mirror": func(c *jetstream.StreamConfig) {
			c.Mirror, c.Subjects, c.Discard = &jetstream.StreamSource{Name: "OTHER"}, nil, jetstream.DiscardOld
		},
	} {
		service := strings.ReplaceAll(field, "_", "-") // a stream of its own: the server takes a moment to delete one
		cfg := Config{Service: service}.withDefaults().streamConfig()
		change(&cfg)
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatalf("%s: %v", field, err)
		}
		_, err := Open(t.Context(), js, Config{Service: service})
		var fault *ConfigError
		if !errors.As(err, &fault) || fault.Field != field || !strings.Contains(err.Error(), cfg.Name) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if _, err := Open(t.Context(), js, Config{}); err != nil {
		t.Fatal(err)
	}
	var fault *ConfigError
	// One server cannot have three.
	if _, err := Open(t.Context(), js, Config{Replicas: 3}); !errors.As(err, &fault) || fault.Field != "num_replicas" {
		t.Errorf("replicas: got %v", err)
	}
}

func TestConfig_Validate(t *testing.T) {
	for want, cfg := range map[string]Config{
		"service":                          {Service: "a.b"},
		"nats.replicas":                    {Replicas: 6},
		"dlq.max_age":                      {MaxAge: time.Millisecond},
		"dlq.max_bytes":                    {MaxBytes: -1},
		"dlq.on_full":                      {OnFull: "panic"},
		"dead_letter.prefix: \"a.*":        {Prefixes: []string{"a.*"}},
		"dead_letter.prefix: \"relay.dlq":  {Prefixes: []string{"relay.dlq.mine"}},
		"dead_letter.prefix: \"relay.due":  {Prefixes: []string{"relay.due"}},
		"dead_letter.prefix: \"$SYS.x.x\"": {Prefixes: []string{"$SYS.x"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestAttach(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if _, err := Attach(t.Context(), js, ""); !errors.Is(err, ErrNoStream) || !strings.Contains(err.Error(), "RELAY_DLQ") {
		t.Errorf("without a stream: got %v", err)
	}
	opened, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, opened, entry(1))
	s, err := Attach(t.Context(), js, "relay")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(collect(t, s, Filter{})); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	if _, err := Attach(t.Context(), js, "a b"); err == nil {
		t.Error("a service name with a space: no error")
	}
}
