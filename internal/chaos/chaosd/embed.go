package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/chaos/ledger"
)

// embedConfig is what the harness writes for one embedding process.
type embedConfig struct {
	URL, Service, Instance, Ledger string
	Subjects                       []string
	Stream, Durable                string
	Concurrency, MaxAttempts       int
	AckWait, Timeout, Drain        time.Duration
	RetryMin, RetryMax             time.Duration
	TripAfter, RouteTripAfter      int
	MaxStuck                       int
	// Load handles without ledgers, for the rows about rates: see load.go. What succeeds takes as long as Takes. Once
	// OutageAfter messages were handled, all fail for as long as Outage.
	Load          string
	Takes, Outage time.Duration
	OutageAfter   int
	Stash         int
}

func runEmbed(args []string) error {
	fs := flag.NewFlagSet("embed", flag.ExitOnError)
	file := fs.String("config", "", "JSON `file`")
	_ = fs.Parse(args)
	data, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	var c embedConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(c.URL, nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true), nats.PingInterval(2*time.Second))
	if err != nil {
		return err
	}
	defer nc.Close()
	for !nc.IsConnected() && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	h, l, err := c.handler()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if c.Load != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	route := consumer.Route{
		Name: "work", Subjects: c.Subjects, Stream: c.Stream, Durable: c.Durable, Start: consumer.Start{Policy: "all"},
		Handler: h, OwnBytes: c.Load != "", Concurrency: c.Concurrency, AckWait: c.AckWait, Timeout: c.Timeout,
	}
	route.Retry.MaxAttempts = c.MaxAttempts
	route.Retry.Min, route.Retry.Max = c.RetryMin, c.RetryMax
	route.Retry.Jitter = new(float64) // none, so that what is early or late can be told
	if c.RetryMin == c.RetryMax {
		route.Retry.Policy = "constant"
	}
	route.Supervisor.TripAfter, route.Supervisor.RouteTrip.Of = &c.TripAfter, &c.RouteTripAfter
	route.Supervisor.DeadTrip.Of = new(0)
	route.Supervisor.MaxStuck = c.MaxStuck
	route.Stash.Messages = c.Stash
	r, err := consumer.New(nc, consumer.Config{Service: c.Service, Instance: c.Instance, Drain: c.Drain, Logger: log}, route)
	if err != nil {
		return err
	}
	if l != nil {
		l.status = r.Status
		go l.report(ctx)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			text, _ := json.Marshal(r.Status())
			fmt.Fprintf(os.Stderr, "status: %s\n", text)
		}
	}()
	err = r.Run(ctx)
	if errors.Is(err, consumer.ErrForcedDrain) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	return err
}

func (c embedConfig) handler() (consumer.Handler, *load, error) {
	if c.Load != "" {
		l := newLoad(c)
		return consumer.HandlerFunc(l.handle), l, nil
	}
	book, err := ledger.Open(c.Ledger)
	if err != nil {
		return nil, nil, err
	}
	return consumer.HandlerFunc(func(ctx context.Context, m *consumer.Msg) error {
		s := ledger.Parse(m.Data)
		run := book.Start(s.ID, m.Attempt, c.Instance, m.Sequence, m.Fence)
		do, sleep := s.For(m.Attempt, c.Instance)
		if sleep > 0 {
			time.Sleep(sleep)
		}
		if err := act(do, m); err != nil {
			book.Failed(s.ID, run)
			return err
		}
		book.Succeeded(s.ID, run)
		return nil
	}), nil, nil
}

var sink atomic.Int64

// act does what a bad handler does. Where it panics, the ledger has no end: the start counts.
func act(do string, m *consumer.Msg) error {
	switch do {
	case "fail":
		return errors.New("the script says fail")
	case "dead":
		return consumer.Dead(errors.New("the script says dead"))
	case "hang":
		select {}
	case "panic":
		panic("the script says panic")
	case "panicerror":
		panic(errors.New("the script says panic"))
	case "panicnil":
		panic(nil)
	case "panicruntime":
		var a []int
		return fmt.Errorf("%d", a[len(m.Data)])
	case "panicpanic":
		panic(hostile{})
	case "goexit":
		runtime.Goexit()
	case "mutate":
		for i := range m.Data {
			m.Data[i] = 'X'
		}
		m.Header.Set("Mutated", "yes")
		return errors.New("mutated")
	case "exit":
		os.Exit(137)
	case "exit0":
		os.Exit(0)
	case "gopanic":
		go panic("in a goroutine of its own")
		time.Sleep(time.Minute)
	case "mapwrite":
		shared := map[string]int{}
		for i := range 8 {
			go func() {
				for {
					shared[strconv.Itoa(i)]++
				}
			}()
		}
		time.Sleep(time.Minute)
	case "overflow":
		// A gigabyte takes seconds to fill, and longer than the short AckWait of a row on a busy machine.
		debug.SetMaxStack(64 << 20)
		sink.Store(int64(deeper(1)))
	}
	return nil
}

func deeper(n int) int {
	if n < 0 {
		return n // never
	}
	return deeper(n+1) + 1
}

// hostile is a panic value whose text panics too.
type hostile struct{}

func (hostile) Error() string { panic("even the error panics") }
