package dlq

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// Replicated streams refuse differently: 10164 while a rival's copy is only proposed, and reads may come from a replica
// that lags.
func TestPut_onceInACluster(t *testing.T) {
	nodes := natstest.Cluster(t, 3)
	var stores []*Store
	var js jetstream.JetStream
	for _, n := range nodes {
		js = n.JetStream(t)
		s, err := Open(t.Context(), js, Config{Replicas: 3})
		for try := 1; err != nil && try < 10; try++ { // a young cluster may be long in electing the leaders of streams
			s, err = Open(t.Context(), js, Config{Replicas: 3})
		}
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	const n = 50
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for seq := range uint64(n) {
				e := entry(seq + 1)
				if seq%25 == 0 {
					e.Data = make([]byte, 1<<20)
				}
				err := s.Put(t.Context(), "", e)
				for tries := 0; err != nil && tries < 5; tries++ { // as a caller does, who has proof of nothing
					err = s.Put(t.Context(), "", e)
				}
				if err != nil {
					t.Errorf("instance %d, %d: %v", i, seq+1, err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for _, e := range collect(t, stores[0], Filter{WithBody: true}) {
		if seen[e.Sequence] {
			t.Errorf("%d is there twice", e.Sequence)
		}
		seen[e.Sequence] = true
	}
	if len(seen) != n {
		t.Errorf("%d entries, want %d", len(seen), n)
	}
	for seq := range uint64(n) {
		if err := stores[seq%3].Discard(t.Context(), seq+1); err != nil {
			t.Error(err)
		}
	}
}
