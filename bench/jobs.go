package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// job is something that all its contestants do in turns.
type job struct {
	name, title string
	// The first contestant is what the others are compared with.
	contestants []string
	n           int // messages, before -n and -quick
	subjects    int
	size        int
	routes      [][]string // all of the stream when nil
	concurrency int
	replicas    int // of all streams; servers in the cluster
	batch       int // messages that a handler gets at once
	handler     handlerSpec
	atMost      time.Duration // for one turn
	waiting     int           // messages that wait for their retry
	percent     float64       // latency: of the peak
	figures     []string      // columns of the job's own, see [sample.Figures]
	still       bool          // no messages: what a service costs that has nothing to do
	run         func(b *bench, ctx context.Context, j *job) error
	targets     []target
}

// target is what the project wants of a job.
type target struct {
	contestant, what string // what: rate, cpu, allocs, rss, p50, p99, idle, or a figure of the job's own
	than             string // the contestant it is compared with; empty: absolute
	bound            float64
}

func (t target) String() string {
	switch t.what {
	case "rate":
		if t.than == "" {
			return fmt.Sprintf("%s ≥ %s msg/s", t.contestant, number(t.bound))
		}
		return fmt.Sprintf("%s ≥ %.2f × %s", t.contestant, t.bound, t.than)
	case "cpu":
		return fmt.Sprintf("%s ≤ %.2f × the CPU of %s", t.contestant, t.bound, t.than)
	case "allocs":
		return fmt.Sprintf("%s ≤ %.0f allocations a message", t.contestant, t.bound)
	case "rss":
		return fmt.Sprintf("%s ≤ %.0f MiB", t.contestant, t.bound)
	case "idle":
		return fmt.Sprintf("%s ≤ %.2f %% of a core", t.contestant, t.bound)
	case "p50", "p99":
		return fmt.Sprintf("%s %s ≤ %.0f µs over %s", t.contestant, t.what, t.bound, t.than)
	}
	return fmt.Sprintf("%s, %s ≤ %s", t.contestant, t.what, number(t.bound))
}

var everybody = []string{"plain", "pool", "confirmed", "watermill-async", "watermill", "library", "binary"}

// jobs are all there are, in their order.
func jobs() []*job {
	discard := handlerSpec{Kind: "discard"}
	all := []*job{
		{name: "drain-128", title: "drain a backlog of 128 B, discard, 100 subjects", contestants: everybody,
			n: 1_000_000, subjects: 100, size: 128, handler: discard, targets: []target{
				{"library", "rate", "plain", 1.15}, {"library", "cpu", "plain", 1.4}, {"library", "allocs", "", 8},
				{"binary", "rate", "plain", 1.15}, {"binary", "cpu", "plain", 1.3},
			}},
		{name: "drain-1k", title: "the same with 1 KiB", contestants: everybody, n: 500_000, subjects: 100, size: 1 << 10, handler: discard},
		{name: "drain-64k", title: "the same with 64 KiB", contestants: everybody, n: 16_000, subjects: 100, size: 64 << 10, handler: discard},
	}
	for _, subjects := range []int{1, 100, 10_000, 1_000_000} {
		all = append(all, &job{
			name: fmt.Sprintf("subjects-%d", subjects), title: fmt.Sprintf("drain 128 B over %d subjects", subjects),
			contestants: []string{"plain", "library", "binary"}, n: 1_000_000, subjects: subjects, size: 128, handler: discard,
			targets: []target{{"library", "rss", "", 256}, {"binary", "rss", "", 256}},
		})
	}
	all = append(all,
		&job{name: "routes", title: "four routes that cover a stream of 10,000 subjects: one durable against four filtered ones",
			contestants: []string{"plain", "library", "binary"}, n: 400_000, subjects: 10_000, size: 128, handler: discard, routes: fourRoutes(),
			targets: []target{{"library", "rate", "plain", 3}, {"binary", "rate", "plain", 3}}},
		&job{name: "handler-1ms", title: "a handler of 1 ms, 64 at once", contestants: []string{"pool", "library"},
			n: 200_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "sleep", Sleep: time.Millisecond},
			targets: []target{{"library", "rate", "pool", 0.97}, {"library", "cpu", "pool", 1.5}}},
		&job{name: "limits", title: "a limit that never binds, against none", contestants: []string{"library", "limited"},
			n: 1_000_000, subjects: 100, size: 128, handler: discard,
			targets: []target{{"limited", "rate", "library", 0.97}}},
		&job{name: "archive", title: "a record of each message, against none", contestants: []string{"library", "archived"},
			n: 1_000_000, subjects: 100, size: 128, handler: discard,
			targets: []target{{"archived", "rate", "library", 0.9}}},
		&job{name: "limits-20", title: "a handler of 1 ms: a limit of 20 on 64 slots, against 20 slots", contestants: []string{"narrow", "limited-20"},
			n: 60_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "sleep", Sleep: time.Millisecond},
			targets: []target{{"limited-20", "rate", "narrow", 0.97}}},
		&job{name: "singleton", title: "one instance at a time, against any number", contestants: []string{"library", "singleton"},
			n: 1_000_000, subjects: 100, size: 128, handler: discard,
			targets: []target{{"singleton", "rate", "library", 0.95}}},
		&job{name: "ordered", title: "a handler of 1 ms, 1,000 subjects, one message of each at a time and in order", contestants: []string{"sharded", "ordered"},
			n: 200_000, subjects: 1000, size: 128, handler: handlerSpec{Kind: "sleep", Sleep: time.Millisecond},
			targets: []target{{"ordered", "rate", "sharded", 0.95}}},
		&job{name: "partitions-r1", title: "three instances with 16 partitions, 1,000 keys in order, against one instance", contestants: []string{"ordered", "partitioned"},
			n: 500_000, subjects: 1000, size: 128, atMost: time.Minute, handler: discard, run: (*bench).overInstances,
			targets: []target{{"partitioned", "rate", "", 50_000}}},
		&job{name: "partitions-r3", title: "the same in a cluster of three, with three replicas of everything", contestants: []string{"ordered", "partitioned"},
			n: 300_000, subjects: 1000, size: 128, atMost: time.Minute, replicas: 3, handler: discard, run: (*bench).overInstances,
			targets: []target{{"partitioned", "rate", "", 25_000}}},
		&job{name: "webhook", title: "a webhook on an endpoint in a process of its own, 64 at once", contestants: []string{"pool", "library", "binary"},
			n: 150_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "http"},
			targets: []target{{"library", "rate", "pool", 0.95}, {"binary", "rate", "pool", 0.95}}},
		&job{name: "webhook-signed", title: "the same, each request signed by Standard Webhooks", contestants: []string{"pool", "library", "binary"},
			n: 150_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "http", Signed: true},
			targets: []target{{"library", "rate", "pool", 0.90}, {"binary", "rate", "pool", 0.90}}},
		&job{name: "webhook-h2", title: "the same over HTTP/2 (TLS)", contestants: []string{"pool", "library", "binary"},
			n: 150_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "http", H2: true},
			targets: []target{{"library", "rate", "pool", 0.95}, {"binary", "rate", "pool", 0.95}}},
		&job{name: "batch", title: "a webhook that gets 100 messages a request, four requests at once", contestants: []string{"fetch", "library", "binary"},
			n: 400_000, subjects: 100, size: 128, concurrency: 4 * batchSize, batch: batchSize, handler: handlerSpec{Kind: "http"},
			targets: []target{{"library", "rate", "fetch", 0.95}, {"binary", "rate", "fetch", 0.95}}},
		&job{name: "reload", title: "the webhook while the configuration is reloaded 100 times, against never", contestants: []string{"binary", "reloaded"},
			n: 150_000, subjects: 100, size: 128, atMost: 30 * time.Second, handler: handlerSpec{Kind: "http", Counted: true}, figures: []string{reloads, reloadTime},
			run: (*bench).disturbed, targets: []target{{"reloaded", "rate", "binary", 0.95}}},
		&job{name: "console", title: "the webhook while 20 pages of the console are open, against none", contestants: []string{"binary", "watched"},
			n: 150_000, subjects: 100, size: 128, atMost: 30 * time.Second, handler: handlerSpec{Kind: "http", Counted: true}, figures: []string{pagesRead},
			run: (*bench).disturbed, targets: []target{{"watched", "rate", "binary", 0.95}}},
		&job{name: "exec", title: "a command, 16 at once", contestants: []string{"pool", "library", "binary"},
			n: 2000, subjects: 100, size: 128, concurrency: 16, handler: handlerSpec{Kind: "exec", Command: []string{"true"}},
			targets: []target{{"library", "rate", "pool", 0.95}, {"binary", "rate", "pool", 0.95}}},
		&job{name: "request", title: "a request to a NATS service in a process of its own, 64 at once", contestants: []string{"pool", "library", "binary"},
			n: 300_000, subjects: 100, size: 128, handler: handlerSpec{Kind: "request"},
			targets: []target{{"library", "rate", "pool", 0.90}, {"binary", "rate", "pool", 0.90}}},
		&job{name: "failing", title: "10 % of the messages fail once and come again after 500 ms", contestants: []string{"pool", "library"},
			n: 200_000, subjects: 100, size: 128, atMost: 20 * time.Second,
			handler: handlerSpec{Kind: "failonce", Percent: 10, Delay: 500 * time.Millisecond},
			targets: []target{{"library", "rate", "pool", 1}}},
	)
	if _, err := exec.LookPath(pythonWorker[0]); err == nil { // the others go on where there is no Python
		all = append(all, &job{name: "worker", title: "four processes in Python that live on, a line of JSON for each message", contestants: []string{"pool", "library", "binary"},
			n: 300_000, subjects: 100, size: 128, concurrency: workerProcesses + 3, handler: handlerSpec{Kind: "worker", Command: pythonWorker},
			targets: []target{{"library", "rate", "pool", 0.95}, {"binary", "rate", "pool", 0.95}}})
	}
	for _, w := range []int{0, 1000, 10_000, 100_000, 1_000_000} {
		j := &job{name: fmt.Sprintf("waiting-%d", w), title: fmt.Sprintf("fresh messages beside %d that wait for their retry", w),
			contestants: []string{"plain", "nak", "library"}, n: 500_000, subjects: 100, size: 128, handler: discard, waiting: w, run: (*bench).besideWaiting}
		if w >= 100_000 {
			j.targets = []target{{"library", "rate", "plain", 0.95}}
		}
		all = append(all, j)
	}
	all = append(all, &job{name: "storm-end", title: "a webhook to an endpoint that refused all messages before, and takes them now that all are due, against as many that are fresh",
		contestants: []string{"library", "storm"}, n: 100_000, subjects: 100, size: 128, atMost: 30 * time.Second, handler: handlerSpec{Kind: "http"}, run: (*bench).stormEnd,
		targets: []target{{"storm", "rate", "library", 0.90}}})
	all = append(all, &job{name: "dlq-1m", title: "1,000,000 dead letters: look at them, and replay a tenth", contestants: []string{"binary"}, n: 1_000_000, handler: discard,
		figures: []string{firstPage, countRoute, countError, groupError}, run: (*bench).deadLetters,
		targets: []target{
			{"binary", firstPage, "", 50}, {"binary", countRoute, "", 1000}, {"binary", countError, "", 1000}, {"binary", groupError, "", 1000},
			{"binary", "rate", "", 5000},
		}})
	for _, p := range []float64{10, 50, 90} {
		j := &job{name: fmt.Sprintf("latency-%.0f", p), title: fmt.Sprintf("end to end at %.0f %% of the peak rate", p),
			contestants: []string{"plain", "pool", "confirmed", "library"}, n: 1, subjects: 100, size: 128, percent: p, run: (*bench).latency}
		if p == 50 {
			j.targets = []target{{"library", "p50", "pool", 20}, {"library", "p99", "pool", 0}}
		}
		all = append(all, j)
	}
	all = append(all, &job{name: "idle", title: "a service with four routes and nothing to do", contestants: []string{"plain", "binary"},
		n: 1, subjects: 1, routes: fourRoutes(), handler: discard, still: true, run: (*bench).idle,
		targets: []target{{"binary", "idle", "", 0.15}, {"binary", "rss", "", 24}}},
		&job{name: "routes-1000", title: "a service with 1,000 routes, each with a durable of its own, and nothing to do", contestants: []string{"binary"},
			n: 1000, handler: discard, still: true, figures: []string{firstStart, secondStart}, run: (*bench).manyRoutes,
			targets: []target{{"binary", firstStart, "", 2}, {"binary", secondStart, "", 2}, {"binary", "idle", "", 2}, {"binary", "rss", "", 128}}},
	)
	for _, j := range all {
		if j.run == nil {
			j.run = (*bench).backlog
		}
		if j.routes == nil {
			j.routes = [][]string{{"bench.>"}}
		}
		if j.concurrency == 0 {
			j.concurrency = 64
		}
		if j.atMost == 0 {
			j.atMost = 8 * time.Second
		}
	}
	return all
}

func fourRoutes() (routes [][]string) {
	for _, s := range allSubjects() {
		routes = append(routes, []string{s})
	}
	return routes
}

// streamSubjects are those of the job's stream. A durable of all routes needs no filter, for relay and for the others.
func (j *job) streamSubjects() []string {
	if len(j.routes) == 1 {
		return j.routes[0]
	}
	return allSubjects()
}

// spec of one turn.
func (b *bench) spec(w *world, j *job, who string, round int) *spec {
	return &spec{
		Contestant: who, URL: w.url, Stream: streamName, Run: fmt.Sprintf("%s-r%d", who, round), Routes: j.routes,
		MaxAckPending: defaultMaxAckPending, Concurrency: j.concurrency, Batch: j.batch, Handler: j.handler, Seed: b.seed + uint64(round), Profile: b.profile,
	}
}

// inTurns calls each contestant of the job once a round, in an order that changes.
func (b *bench) inTurns(ctx context.Context, j *job, turn func(who string, round int) (sample, error)) error {
	var errs []error
	for round := range b.rounds {
		order := b.chosen(j)
		rand.New(rand.NewPCG(b.seed, uint64(round))).Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		for _, who := range order {
			r, err := turn(who, round)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				// The others go on; the table shows what is missing.
				errs = append(errs, fmt.Errorf("%s, %s, round %d: %w", j.name, who, round+1, err))
				b.note(errs[len(errs)-1].Error())
				continue
			}
			r.Job, r.Contestant, r.Round = j.name, who, round
			b.take(&r)
		}
	}
	return errors.Join(errs...)
}

// chosen are the contestants of the job that were asked for. The one they are compared with is always among them, but for
// a profile, which is of one contestant.
func (b *bench) chosen(j *job) []string {
	var c []string
	for i, who := range j.contestants {
		if i == 0 && b.profile == "" || len(b.contestants) == 0 || slices.Contains(b.contestants, who) {
			c = append(c, who)
		}
	}
	return c
}

// backlog drains a stream that was filled before. All contestants drain the same one, each with durables of its own.
func (b *bench) backlog(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	n := b.size(j.n)
	if err := w.fill(ctx, n, min(j.subjects, n), j.size, b.seed); err != nil {
		return err
	}
	h := j.handler
	switch h.Kind {
	case "http":
		p, err := h.endpoint(ctx)
		if err != nil {
			return err
		}
		defer p.end()
	case "request":
		p, err := play(ctx, "service", w.url)
		if err != nil {
			return err
		}
		defer p.stop(nil)
		var subject string
		if err := p.hear(&subject, 10*time.Second); err != nil {
			return err
		}
	case "failonce":
		h.Until = n
	}
	return b.inTurns(ctx, j, func(who string, round int) (sample, error) {
		s := b.spec(w, j, who, round)
		s.Handler = h
		r, err := b.drain(ctx, w, s, n, 0, b.atMost(j.atMost))
		durables, _ := s.durables()
		return r, errors.Join(err, w.forget(ctx, durables))
	})
}

// find returns the jobs that a list of names and prefixes selects.
func find(list string) ([]*job, error) {
	all := jobs()
	if list == "" {
		return all, nil
	}
	var chosen []*job
	for _, name := range strings.Split(list, ",") {
		n := len(chosen)
		for _, j := range all {
			if (j.name == name || strings.HasPrefix(j.name, name+"-")) && !slices.Contains(chosen, j) {
				chosen = append(chosen, j)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no job %q", name)
		}
	}
	return chosen, nil
}
