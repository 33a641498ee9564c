package kvwatch

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func TestStop_regressionUpdatesThatNobodyReadsLeaveNoGoroutine(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		if _, err := kv.PutString(t.Context(), strconv.Itoa(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	w, err := kv.WatchAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(w.Updates()) < cap(w.Updates()) {
		if time.Now().After(deadline) {
			t.Fatalf("%d updates", len(w.Updates()))
		}
		time.Sleep(time.Millisecond)
	}
	Stop(w)
}
