package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/internal/looks"
)

// stream answers from memory, as a look does.
type stream struct {
	jetstream.Stream
	info jetstream.StreamInfo
}

func (s *stream) CachedInfo() *jetstream.StreamInfo { return &s.info }

// durable is one whose server says what the test wants.
type durable struct {
	Watchdog
	health health.Health

	stream   jetstream.StreamInfo
	info     jetstream.ConsumerInfo
	identity ack.Identity
	err      error // of a question about the stream
	asked    int   // how often the durable was asked itself

	lost      bool // heartbeats are missed
	got       time.Time
	anew      int
	gaps      int // that were seen; all are missing until one is filled
	missing   bool
	here      []map[uint64]struct{} // in hand, at one question and the next
	did       []string
	ages      []time.Duration
	inspected health.Edits
}

func (d *durable) IsLost(time.Time) bool { return d.lost }
func (d *durable) Got() time.Time        { return d.got }
func (d *durable) Heard() time.Time      { return time.Now() }
func (d *durable) Anew()                 { d.anew++ }
func (d *durable) Missing() bool         { return d.missing }
func (d *durable) Seen() int             { return d.gaps }
func (d *durable) Fill(time.Time)        { d.missing = false }
func (d *durable) MayHaveLost(time.Time) { d.did = append(d.did, "may have lost") }
func (d *durable) times(what string) (n int) {
	for _, s := range d.did {
		if s == what {
			n++
		}
	}
	return n
}

func newDurable(leased bool) *durable {
	d := &durable{got: time.Now(), identity: ack.Identity{StreamCreated: time.Unix(1, 0), ConsumerCreated: time.Unix(2, 0)}}
	d.info.Config.MaxAckPending = 100
	d.Begin(Config{
		Log: slog.New(slog.DiscardHandler), Stream: "ORDERS", Durable: "billing", Identity: d.identity, Leased: leased, Others: func() int { return 0 },
		Health: &d.health, Pulls: d, Gaps: d, HasRoom: func() bool { return true }, Missed: func() uint64 { return 7 }, Timeout: time.Minute,
		Here: func() map[uint64]struct{} {
			h := d.here[0]
			d.here = append(d.here[1:], h)
			return h
		},
		OfStream: func(_ context.Context, age time.Duration) (looks.Look, error) {
			d.ages = append(d.ages, age)
			return looks.Look{Stream: &stream{info: d.stream}, Asked: time.Now()}, d.err
		},
		Share: func(s time.Duration) time.Duration { return s },
		Ask: func(context.Context, looks.Look) (ack.Identity, *jetstream.ConsumerInfo, error) {
			d.asked++
			info := d.info
			return d.identity, &info, nil
		},
		GiveBackAgain: func(ctx context.Context, _ *jetstream.ConsumerInfo, missed uint64) {
			if _, bounded := ctx.Deadline(); bounded {
				missed = 0 // there may be thousands of them, and it takes as long as it takes
			}
			d.did = append(d.did, fmt.Sprint("give back again to ", missed))
		},
		Inspect: func(context.Context, looks.Look, *jetstream.ConsumerInfo) health.Edits { return d.inspected },
		Looked:  func(backlog.Look) { d.did = append(d.did, "rests") },
		Edited:  func(e health.Edits) { d.health.Edit(e) },
		Lost:    func(err error) { d.did = append(d.did, err.Error()); d.health.Lose(err) },
		Rebuilt: func() { d.did = append(d.did, "rebuilt") },
	})
	return d
}

// check asks if that is due, and acts.
func (d *durable) check(t *testing.T) bool {
	q, due := d.Due(time.Now())
	if due {
		d.Act(d.Look(t.Context(), q), time.Now())
	}
	return due
}

// A durable on which messages arrive is asked about every ten seconds, one on which nothing comes every five, and one that is doubted after two.
func TestWatchdog_Due(t *testing.T) {
	t.Parallel()
	every := func(d *durable, span time.Duration, before func()) (n int) {
		for began := time.Now(); time.Since(began) < span; time.Sleep(100 * time.Millisecond) {
			before()
			if q, due := d.Due(time.Now()); due {
				d.Look(context.Background(), q)
				n++
			}
		}
		return n
	}
	for name, c := range map[string]struct {
		before func(*durable)
		want   int
	}{
		"messages arrive":       {func(d *durable) { d.got = time.Now() }, 6},
		"nothing comes":         {func(*durable) {}, 12},
		"there is doubt":        {func(d *durable) { d.got = time.Now(); d.Doubt() }, 30},
		"heartbeats are missed": {func(d *durable) { d.got, d.lost = time.Now(), true }, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDurable(false)
				if n := every(d, time.Minute, func() { c.before(d) }); n < c.want-2 || n > c.want+1 {
					t.Errorf("asked %d times a minute, want about %d", n, c.want)
				}
				if n := d.times("may have lost"); (n > 0) != d.lost {
					t.Errorf("%d times messages may have been lost", n)
				}
			})
		})
	}
}

// While nothing happens on its stream a durable that has delivered all is not asked itself, for half a minute; anything else asks it.
func TestWatchdog_rest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDurable(false)
		asks := func(what string, want int) {
			t.Helper()
			before := d.asked
			if time.Sleep(6 * time.Second); !d.check(t) {
				t.Fatalf("%s: not looked at", what)
			}
			if n := d.asked - before; n != want {
				t.Errorf("%s: asked %d times, want %d", what, n, want)
			}
		}
		asks("at first", 1)
		asks("it rests", 0)
		asks("it still rests", 0)
		d.stream.State.LastSeq++
		asks("a message was stored", 1)
		asks("it rests again", 0)
		d.Doubt()
		asks("there is doubt", 1)
		time.Sleep(restFor)
		asks("it rested for long", 1)
		d.info.NumPending = 1
		d.Doubt()
		asks("a message waits", 1)
		asks("it does not rest", 1)
		if d.times("rests") != 3 || d.Pending() != 1 {
			t.Errorf("%v; %d pending", d.did, d.Pending())
		}
	})
}

// What is gone, or was made again, is lost, and an error that says nothing of it is not.
func TestWatchdog_lost(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*durable){
		"stream ORDERS was deleted":                     func(d *durable) { d.err = jetstream.ErrStreamNotFound },
		"durable billing was deleted":                   func(d *durable) { d.err = jetstream.ErrConsumerNotFound },
		"stream ORDERS was deleted and created again":   func(d *durable) { d.identity.StreamCreated = time.Unix(9, 0) },
		"durable billing was deleted and created again": func(d *durable) { d.identity.ConsumerCreated = time.Unix(9, 0) },
		"": func(d *durable) { d.err = context.DeadlineExceeded },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d := newDurable(false)
			change(d)
			if d.check(t); d.health.IsLost() != (want != "") || want != "" && !slices.Equal(d.did, []string{want}) {
				t.Errorf("%v, lost %v", d.did, d.health.IsLost())
			}
		})
	}
}

// Pulls are thrown away when messages wait, there is room for them, and yet none comes.
func TestWatchdog_pullsAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*durable)
		want   int
	}{
		"messages wait":                 {func(d *durable) { d.info.NumPending = 3 }, 1},
		"none waits":                    {func(*durable) {}, 0},
		"it is paused":                  {func(d *durable) { d.info.NumPending, d.info.Paused = 3, true }, 0},
		"it allows no more":             {func(d *durable) { d.info.NumPending, d.info.NumAckPending = 3, 100 }, 0},
		"messages came":                 {func(d *durable) { d.info.NumPending, d.got = 3, time.Now() }, 0},
		"the durable was created again": {func(d *durable) { d.info.NumPending, d.identity.ConsumerCreated = 3, time.Unix(9, 0) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDurable(false)
				time.Sleep(time.Minute)
				c.change(d)
				d.check(t)
				if d.anew != c.want || d.times("rebuilt") != c.want {
					t.Errorf("%d times, want %d; %v", d.anew, c.want, d.did)
				}
			})
		})
	}
}

// Messages of an ordered route wait for some that are missing here, until all that is not settled is in the hand of this instance: no other holder has
// any of them. Whatever came or was settled meanwhile, a gap is not filled while somebody else may have a message.
func TestWatchdog_gapIsFilledWhenAllIsHere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := newDurable(true)
		d.gaps, d.missing = rapid.IntRange(1, 3).Draw(rt, "gaps"), true
		before := rapid.SliceOfDistinct(rapid.Uint64Range(1, 20), rapid.ID).Draw(rt, "in hand before")
		after := rapid.SliceOfDistinct(rapid.Uint64Range(1, 20), rapid.ID).Draw(rt, "in hand after")
		set := func(list []uint64) map[uint64]struct{} {
			m := make(map[uint64]struct{})
			for _, n := range list {
				m[n] = struct{}{}
			}
			return m
		}
		d.here = []map[uint64]struct{}{set(before), set(after)}
		both := 0
		for _, n := range before {
			if slices.Contains(after, n) {
				both++
			}
		}
		d.info.NumAckPending = rapid.IntRange(0, 25).Draw(rt, "outstanding")
		q, due := d.Due(time.Now())
		if !due || !q.Afresh {
			rt.Fatal("it is not asked at once")
		}
		f := d.Look(context.Background(), q)
		if rapid.Bool().Draw(rt, "another gap meanwhile") {
			d.gaps++
			if d.Act(f, time.Now()); !d.missing {
				rt.Fatal("a later gap was filled by that")
			}
			return
		}
		d.Act(f, time.Now())
		if here := d.info.NumAckPending <= both; d.missing == here {
			rt.Fatalf("%d outstanding, %d of them here all the time: missing %v", d.info.NumAckPending, both, d.missing)
		} else if !here && !slices.Contains(d.did, "give back again to 7") {
			rt.Fatalf("what somebody else has is not given back: %v", d.did)
		}
	})
}

// An edit stops a durable until it is undone, and a durable without a quorum is not well.
func TestWatchdog_health(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDurable(false)
		d.inspected = health.Edits{Stop: []string{"ack_wait is 9s, not 30s"}}
		if d.check(t); !d.health.Stops() {
			t.Error("it does not stop")
		}
		d.inspected = health.Edits{}
		time.Sleep(LookEvery + time.Second)
		if d.check(t); d.health.Stops() {
			t.Error("it does not go on")
		}
		d.err = errors.New("no answer")
		for range 10 {
			time.Sleep(checkAgain + time.Millisecond)
			d.check(t)
		}
		if err := d.health.Silent(time.Now()); err == nil || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("nobody is told: %v", err)
		}
	})
}

// The question whether the durable is still the same is answered while a look stands still, and what else is known of the durable stays as it is.
func TestConfirm(t *testing.T) {
	t.Parallel()
	d := newDurable(false)
	standing, goOn := make(chan struct{}), make(chan struct{})
	d.cfg.Inspect = func(context.Context, looks.Look, *jetstream.ConsumerInfo) health.Edits {
		close(standing)
		<-goOn
		return health.Edits{Stop: []string{"ack_policy"}}
	}
	looked := make(chan Finding)
	go func() { looked <- d.Look(t.Context(), d.Now(time.Now())) }()
	<-standing
	d.Act(d.Confirm(t.Context()), time.Now())
	close(goOn)
	d.Act(<-looked, time.Now())
	d.Act(d.Confirm(t.Context()), time.Now())
	if !d.health.Stops() || len(d.did) > 0 {
		t.Errorf("it stops: %v; %q", d.health.Stops(), d.did)
	}
	d.identity.ConsumerCreated = time.Unix(3, 0)
	if d.Act(d.Confirm(t.Context()), time.Now()); d.times("durable billing was deleted and created again") != 1 {
		t.Errorf("of another durable: %q", d.did)
	}
	d = newDurable(false)
	d.err = jetstream.ErrStreamNotFound
	if d.Act(d.Confirm(t.Context()), time.Now()); d.times("stream ORDERS was deleted") != 1 {
		t.Errorf("without its stream: %q", d.did)
	}
}
