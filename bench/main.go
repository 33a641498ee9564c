// Command bench compares relay with plain nats.go and with Watermill, each in a process of its own, in turns, on a
// nats-server that is a process too. See docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is one run of the program.
type bench struct {
	relay       string // the program
	contestants []string
	rounds      int
	n           int     // messages of each job; 0: the job's own
	share       float64 // of the job's own
	most        int     // messages that wait for their retry; 0: as many as the job says
	seed        uint64
	profile     string
	limit       time.Duration // for one turn; 0: the job's own
	last        time.Duration // of a latency turn
	quiet       time.Duration // of the idle turn
	peak        float64       // messages a second from a publisher to plain nats.go, once known

	samples []*sample
	notes   []string
	quietly bool // no progress
}

// size is how many messages a job of n has in this run.
func (b *bench) size(n int) int {
	if b.n > 0 {
		return b.n
	}
	return max(int(float64(n)*b.share), 200)
}

func (b *bench) atMost(d time.Duration) time.Duration {
	if b.limit > 0 {
		return min(b.limit, d)
	}
	return d
}

func (b *bench) take(s *sample) {
	b.samples = append(b.samples, s)
	if !b.quietly {
		fmt.Fprintf(os.Stderr, "  %-16s %-16s round %d  %s\n", s.Job, s.Contestant, s.Round+1, s)
	}
}

func (b *bench) note(text string) {
	b.notes = append(b.notes, text)
	if !b.quietly {
		fmt.Fprintln(os.Stderr, "  "+text)
	}
}

// do runs the jobs one after the other. A job that fails does not keep the others from running.
func (b *bench) do(ctx context.Context, chosen []*job) error {
	var errs []error
	for _, j := range chosen {
		if err := j.run(b, ctx, j); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

func main() {
	playRole()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{share: 1, last: 5 * time.Second, quiet: 30 * time.Second}
	names := flag.String("jobs", "", "jobs to run, separated by commas; a prefix such as drain or waiting names several (default all)")
	who := flag.String("contestants", "", "contestants to run beside the one that each job is compared with (default all)")
	rounds := flag.Int("rounds", 0, "turns of each contestant (default 3; with -quick 1)")
	flag.IntVar(&b.n, "n", 0, "messages of each job (default the job's own number)")
	flag.Uint64Var(&b.seed, "seed", 1, "of bodies, of the subjects' order, of which messages fail, and of who begins")
	quick := flag.Bool("quick", false, "small jobs, under four minutes in all: for a first look, not for figures")
	flag.StringVar(&b.relay, "relay", "../bin/relay", "the relay program")
	out := flag.String("out", "results.md", "file for the results; empty: none")
	flag.StringVar(&b.profile, "profile", "", "directory for CPU, allocation and mutex profiles; with one job and one contestant")
	list := flag.Bool("list", false, "list the jobs and their contestants")
	flame := flag.String("flame", "", "draw this CPU profile as a flame graph on standard output, and do nothing else")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *flame != "" {
		return drawFlame(os.Stdout, *flame)
	}
	chosen, err := find(*names)
	if err != nil {
		return err
	}
	if *list {
		for _, j := range chosen {
			fmt.Printf("%-16s %s: %s\n", j.name, j.title, strings.Join(j.contestants, ", "))
		}
		return nil
	}
	b.rounds = 3
	if *quick {
		b.rounds, b.share, b.limit, b.last, b.quiet, b.most = 1, 0.1, 2*time.Second, time.Second, 3*time.Second, 20_000
	}
	if *rounds > 0 {
		b.rounds = *rounds
	}
	if *who != "" {
		b.contestants = strings.Split(*who, ",")
		var known []string
		for _, j := range jobs() {
			known = append(known, j.contestants...)
		}
		slices.Sort(known)
		known = slices.Compact(known)
		for _, c := range b.contestants {
			if !slices.Contains(known, c) {
				return fmt.Errorf("no contestant %q: there are %s", c, strings.Join(known, ", "))
			}
		}
	}
	if b.profile != "" {
		if err := os.MkdirAll(b.profile, 0o755); err != nil {
			return err
		}
	}
	if _, err := os.Stat(b.relay); err != nil {
		return fmt.Errorf("%w: build it with make build, or say -relay", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	begun := time.Now()
	failed := b.do(ctx, chosen)
	rep := b.report(ctx, chosen, begun)
	fmt.Print(rep.text(false))
	if *out != "" && len(b.samples) > 0 {
		if err := os.WriteFile(*out, []byte(rep.text(true)), 0o644); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}
