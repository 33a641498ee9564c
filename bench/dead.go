package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// What dlq-1m measures beside the rate of a replay: commands, from their start to their end.
const (
	firstPage  = "first page ms"
	countRoute = "count by route ms"
	countError = "count by error ms"
	groupError = "groups ms"
)

// deadLetters has an operator look at many dead letters, and replay a tenth of them to a route that runs.
func (b *bench) deadLetters(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	n, stored := b.size(j.n), 0
	if b.most > 0 {
		n = min(n, b.most)
	}
	share := max(n/10, 1)
	s := b.spec(w, j, "binary", 0)
	route := s.Run + "-0"
	return b.inTurns(ctx, j, func(string, int) (r sample, err error) {
		// The round before took a tenth.
		missing := share
		if stored == 0 {
			missing = n
		}
		if err := w.bury(ctx, route, s.Run, stored, missing); err != nil {
			return r, err
		}
		stored += missing
		c, err := b.enter(ctx, s)
		if err != nil {
			return r, err
		}
		if err := c.ready(ctx); err != nil {
			c.giveUp()
			return r, err
		}
		r.Figures = map[string]float64{}
		for _, look := range []struct {
			figure string
			args   []string
		}{
			{firstPage, []string{"ls"}},
			{countRoute, []string{"ls", "--count", "--route", route}},
			{countError, []string{"ls", "--count", "--error", "upstream 1"}},
			{groupError, []string{"ls", "--group-by", "error"}},
		} {
			took, err := b.dlq(ctx, w, look.args...)
			if err != nil {
				c.giveUp()
				return r, err
			}
			r.Figures[look.figure] = float64(took.Microseconds()) / 1000
		}
		durables, _ := s.durables()
		var took time.Duration
		from, err := w.look(ctx, c, durables)
		if err == nil {
			took, err = b.dlq(ctx, w, "replay", "--limit", strconv.Itoa(share), "--wait", "--yes")
		}
		var to mark
		if err == nil {
			to, err = w.look(ctx, c, durables)
		}
		if err != nil {
			c.giveUp()
			return r, err
		}
		r.Messages, r.Handled, r.Seconds, r.CPU, r.ServerCPU, r.RSS = share, share, took.Seconds(), to.cpu-from.cpu, to.server-from.server, c.peakRSS()
		said, err := c.leave(ctx)
		r.Mallocs = said.Mallocs
		return r, err
	})
}

// dlq runs `relay dlq` as a user does, and returns how long it took.
func (b *bench) dlq(ctx context.Context, w *world, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, b.relay, append([]string{"dlq", "--server", w.url}, args...)...)
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return time.Since(begun), nil
}

// bury stores n dead letters of a route: as many errors as messages, which are of four groups.
func (w *world) bury(ctx context.Context, route, durable string, from, n int) error {
	store, err := dlq.Open(ctx, w.js, dlq.Config{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int, 1000)
	var work sync.WaitGroup
	at := time.Now().Add(-time.Hour)
	for range 64 {
		work.Go(func() {
			for i := range next {
				err := store.Put(ctx, "", dlq.Entry{
					Origin: retry.Origin{
						Route: route, Stream: streamName, Consumer: durable, Sequence: uint64(i + 1), Time: at.Add(time.Duration(i)), Subject: subjectOf(i),
						Attempts: 1 + i%20, Deliveries: 20, FirstFailure: at, LastFailure: at.Add(time.Minute),
						LastError: fmt.Sprintf("POST http://10.0.0.%d:9000/hook: 50%d Service Unavailable: upstream %d", i%250, i%4, i),
					},
					Data: fmt.Appendf(nil, `{"n":%d,"customer":{"id":%d},"total":%d.5}`, i, i%1000, i%500), Reason: dlq.Exhausted, Instance: "bench",
				})
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := from; i < from+n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	work.Wait()
	if err := context.Cause(ctx); err != nil {
		return errors.Join(errors.New("storing dead letters"), err)
	}
	return nil
}
