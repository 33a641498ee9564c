package dlq

import (
	"sync"
	"testing"

	"github.com/relaymq/relay/internal/natstest"
)

// BenchmarkList reads 50,000 entries; the figure is for one.
func BenchmarkList(b *testing.B) {
	js := natstest.Start(b, natstest.WithListen()).JetStream(b)
	s, err := Open(b.Context(), js, Config{})
	if err != nil {
		b.Fatal(err)
	}
	const n = 50_000
	next := make(chan uint64, 100)
	var work sync.WaitGroup
	for range 32 {
		work.Go(func() {
			for seq := range next {
				if err := s.Put(b.Context(), "", entry(seq)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range uint64(n) {
		next <- i + 1
	}
	close(next)
	work.Wait()
	for name, f := range map[string]Filter{"headers": {}, "route": {Route: "billing"}, "bodies": {WithBody: true}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				count := 0
				for _, err := range s.List(b.Context(), f) {
					if err != nil {
						b.Fatal(err)
					}
					count++
				}
				if count != n {
					b.Fatalf("%d entries", count)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
