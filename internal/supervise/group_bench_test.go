package supervise

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// trifle is work that succeeds at once.
type trifle struct{ done *sync.WaitGroup }

func (trifle) Do(context.Context, int, any) Verdict { return Verdict{Kind: Ack} }
func (t trifle) Settle(Outcome)                     { t.done.Done() }
func (t trifle) Away() Away                         { return nil }
func (t trifle) Remember(Outcome, func(bool))       {}

// BenchmarkGroup is the way of messages that succeed, from their delivery to their settlement, in batches as the pull
// loop delivers them. An operation is one message.
func BenchmarkGroup(b *testing.B) {
	const batch = 256
	for _, keys := range []int{1, 100, 100_000} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			g := New(Options{Shared: "child"})
			defer g.Close(context.Background())
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("orders.%d.created", i)
			}
			var done sync.WaitGroup
			work := trifle{&done}
			messages := make([]*Message, batch)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += batch {
				n := min(batch, b.N-i)
				for j := range n {
					messages[j] = &Message{Work: work, Key: names[(i+j)%keys], Sequence: uint64(i + j + 1), Size: 128}
				}
				done.Add(n)
				g.Deliver(messages[:n]...)
				done.Wait()
			}
		})
	}
}

// BenchmarkGroup_besideFailures has a key trip whose messages go to the stash and are given back when that is full, beside
// one that flows. An operation is one message that flows.
func BenchmarkGroup_besideFailures(b *testing.B) {
	g := New(Options{Shared: "child", StashMessages: 100})
	defer g.Close(context.Background())
	var done sync.WaitGroup
	flows := trifle{&done}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		done.Add(1)
		batch := []*Message{{Work: flows, Key: "good", Sequence: uint64(2 * i), Size: 128}}
		if i%10 == 0 {
			batch = append(batch, &Message{Work: troubling{}, Key: "bad", Sequence: uint64(2*i + 1), Size: 128})
		}
		g.Deliver(batch...)
		done.Wait()
	}
	b.StopTimer()
}

// troubling is work that fails.
type troubling struct{}

func (troubling) Do(context.Context, int, any) Verdict {
	return Verdict{Kind: Retry, Err: ErrHandlerHung}
}
func (troubling) Settle(Outcome)               {}
func (troubling) Away() Away                   { return nil }
func (troubling) Remember(Outcome, func(bool)) {}
