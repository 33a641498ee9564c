package dlq

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// BenchmarkList reads 50,000 entries; the figure is for one.
func BenchmarkList(b *testing.B) {
	js := natstest.Start(b).JetStream(b)
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
			b.ReportAllocs()
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
	b.Run("batch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if count := listBatches(b, s); count != n {
				b.Fatalf("%d entries", count)
			}
		}
		b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
	})
}

// listBatches is a listing by direct gets of batches, as orbit.go has it: there are no headers without the bodies, and each
// message comes with the headers of an answer among its own.
func listBatches(b *testing.B, s *Store) (count int) {
	nc := s.js.Conn()
	inbox := nc.NewInbox()
	messages := make(chan *nats.Msg, 8192)
	sub, err := nc.ChanSubscribe(inbox, messages)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for next, more := uint64(1), true; more; {
		request := fmt.Sprintf(`{"seq":%d,"batch":1000,"next_by_subj":">"}`, next)
		if err := nc.PublishRequest(s.apiPrefix()+"DIRECT.GET."+s.stream.CachedInfo().Config.Name, inbox, []byte(request)); err != nil {
			b.Fatal(err)
		}
		for m := range messages {
			if status := m.Header.Get("Status"); status != "" { // 204: the end of the batch; 404: of the stream
				more = status == "204" && m.Header.Get("Nats-Num-Pending") != "0"
				break
			}
			if _, err := decode(m.Header); err != nil {
				b.Fatal(err)
			}
			sequence, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			next = sequence + 1
			count++
		}
	}
	return count
}

// BenchmarkRun replays 20,000 entries as fast as it goes to a route that nobody runs; the figure is for one.
func BenchmarkRun(b *testing.B) {
	js := natstest.Start(b).JetStream(b)
	s, err := Open(b.Context(), js, Config{})
	if err != nil {
		b.Fatal(err)
	}
	_, err = js.CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"},
		Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, Duplicates: 10 * time.Minute,
	})
	if err != nil {
		b.Fatal(err)
	}
	takes(b, js, "billing")
	jobs, err := OpenJobs(b.Context(), js, "", 1)
	if err != nil {
		b.Fatal(err)
	}
	const n = 20_000
	at := uint64(0)
	for b.Loop() {
		b.StopTimer()
		next := make(chan uint64, 100)
		var work sync.WaitGroup
		for range 32 {
			work.Go(func() {
				for seq := range next {
					e := entry(seq)
					e.Subject = fmt.Sprintf("orders.%d", seq%100)
					if err := s.Put(b.Context(), "", e); err != nil {
						b.Error(err)
					}
				}
			})
		}
		for range n {
			at++
			next <- at
		}
		close(next)
		work.Wait()
		plan, err := s.Plan(b.Context(), Choice{})
		if err != nil {
			b.Fatal(err)
		}
		job := Job{ID: NewJobID(time.Now()), State: JobRunning, Total: plan.Total, Last: plan.Last}
		if err := jobs.Create(b.Context(), &job); err != nil {
			b.Fatal(err)
		}
		run := &Run{Store: s, Jobs: jobs, Job: &job, Plan: plan, Runner: "me"}
		b.StartTimer()
		if err := run.Do(b.Context()); err != nil || job.Handed != n {
			b.Fatalf("%d handed over, %v", job.Handed, err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}
