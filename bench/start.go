package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// What routes-1000 measures beside the cost of having nothing to do: from the start of the process until it is ready, when all durables are still to
// be made, and when they are there.
const (
	firstStart  = "first start s"
	secondStart = "next start s"
)

// manyRoutes starts a service of so many routes twice, and has the second one wait for messages that do not come.
func (b *bench) manyRoutes(ctx context.Context, j *job) error {
	n := j.n
	if b.n > 0 || b.share < 1 {
		n = min(n, b.size(n))
	}
	if b.most > 0 {
		n = min(n, b.most)
	}
	var routes [][]string
	for i := range n {
		routes = append(routes, []string{"bench." + strconv.Itoa(i) + ".>"})
	}
	w, err := newWorld(ctx, "bench.>")
	if err != nil {
		return err
	}
	defer w.close()
	return b.inTurns(ctx, j, func(who string, round int) (r sample, err error) {
		s := b.spec(w, j, who, round)
		s.Routes, s.Apart = routes, true
		figures := map[string]float64{}
		var c *contestant
		for _, name := range []string{firstStart, secondStart} {
			if c != nil {
				c.binary.end()
			}
			begun := time.Now()
			if c, err = b.enter(ctx, s); err != nil {
				return r, err
			}
			if err := c.ready(ctx); err != nil {
				c.giveUp()
				return r, err
			}
			figures[name] = time.Since(begun).Seconds()
		}
		r, err = b.nothingToDo(ctx, c)
		r.Figures = figures
		c.binary.end()
		durables, _ := s.durables()
		return r, errors.Join(err, w.forget(ctx, durables))
	})
}

// ready waits until the program says that it is.
func (c *contestant) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.binary.admin+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", ctx.Err())
		case <-c.ended:
			return c.failure()
		case <-time.After(5 * time.Millisecond):
		}
	}
}
