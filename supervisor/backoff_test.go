package supervisor

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoff_baseDelays(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name string
		b    Backoff
		want string
	}{
		{"exponential", Backoff{Min: s, Max: 20 * s}, "[1s 2s 4s 8s 16s 20s 20s]"},
		{"exponential, not a power of two", Backoff{Min: 300 * time.Millisecond, Max: time.Minute}, "[300ms 600ms 1.2s 2.4s 4.8s 9.6s 19.2s]"},
		{"linear", Backoff{Policy: Linear, Min: s, Max: 5 * s}, "[1s 2s 3s 4s 5s 5s 5s]"},
		{"fibonacci", Backoff{Policy: Fibonacci, Min: s, Max: 10 * s}, "[1s 1s 2s 3s 5s 8s 10s]"},
		{"constant", Backoff{Policy: Constant, Min: s, Max: 10 * s}, "[1s 1s 1s 1s 1s 1s 1s]"},
		{"schedule", Backoff{Policy: Schedule, Delays: []time.Duration{s, 0, 7 * s, time.Hour}, Max: time.Minute}, "[1s 0s 7s 1m0s 1m0s 1m0s 1m0s]"},
		{"slots that start again", Backoff{Policy: Slots, Slot: s, Max: time.Hour, Ceiling: 3}, "[1s 3s 7s 0s 1s 3s 7s]"},
		{"slots that stay", Backoff{Policy: Slots, Slot: s, Max: time.Hour, Ceiling: 3, StayAtCeiling: true}, "[1s 3s 7s 7s 7s 7s 7s]"},
		{"a function, capped", Backoff{Func: func(n int) time.Duration { return time.Duration(n*n-1) * s }, Max: 20 * s}, "[0s 0s 3s 8s 15s 20s 20s]"},
		{"the retry default", Backoff{}, "[500ms 1s 2s 4s 8s 16s 32s]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.b.WithRetryDefaults()
			var got []time.Duration
			for n := range 7 {
				got = append(got, b.Base(n))
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("delays %v, want %v", got, tt.want)
			}
		})
	}
}

func TestBackoff_restartDefaults(t *testing.T) {
	b := Backoff{}.WithRestartDefaults()
	if b.Min != 200*time.Millisecond || b.Max != time.Minute || *b.Jitter != 0.2 || b.Policy != exponential || b.Ceiling != 10 {
		t.Errorf("defaults %+v", b)
	}
	if b := (Backoff{Min: time.Hour}).WithRestartDefaults(); b.Max != time.Hour {
		t.Errorf("max is %v when min is above its default", b.Max)
	}
}

func TestBackoff_jitterIsAFractionEachWay(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 3 * time.Second, Jitter: new(0.2)}.WithRetryDefaults()
	for _, tt := range []struct {
		n      int
		random float64
		want   time.Duration
	}{
		{0, 0, 800 * time.Millisecond},
		{0, 0.5, time.Second},
		{0, 0.75, 1100 * time.Millisecond},
		{1, 0, 1600 * time.Millisecond},
		{5, 0.9, 3 * time.Second}, // never past max
		{5, 0, 2400 * time.Millisecond},
	} {
		got := b.delay(tt.n, func() float64 { return tt.random })
		if d := got - tt.want; d < -time.Microsecond || d > time.Microsecond {
			t.Errorf("delay(%d) with %v: %v, want %v", tt.n, tt.random, got, tt.want)
		}
	}
}

func TestBackoff_slotsDrawFromZeroToTheirExponent(t *testing.T) {
	b := Backoff{Policy: Slots, Slot: time.Second, Max: time.Hour, Ceiling: 4}.WithRetryDefaults()
	var got []time.Duration
	for _, random := range []float64{0, 0.24, 0.25, 0.5, 0.75, math.Nextafter(1, 0)} { // exponent 3: four values
		got = append(got, b.delay(2, func() float64 { return random }))
	}
	if want := "[0s 0s 1s 3s 7s 7s]"; fmt.Sprint(got) != want {
		t.Errorf("delays %v, want %v", got, want)
	}
}

// anyBackoff draws what Validate accepts, over the whole range.
func anyBackoff(t *rapid.T) Backoff {
	d := rapid.OneOf(rapid.Int64Range(0, math.MaxInt64), rapid.Int64Range(1, int64(time.Hour)), rapid.Just(int64(math.MaxInt64)))
	a, b := time.Duration(max(1, d.Draw(t, "a"))), time.Duration(max(1, d.Draw(t, "b")))
	v := Backoff{
		Policy:        rapid.SampledFrom([]Policy{exponential, Linear, Fibonacci, Constant, Schedule, Slots}).Draw(t, "policy"),
		Min:           min(a, b),
		Max:           max(a, b),
		Jitter:        new(rapid.Float64Range(0, 1).Draw(t, "jitter")),
		Slot:          time.Duration(d.Draw(t, "slot")),
		Ceiling:       rapid.IntRange(1, 62).Draw(t, "ceiling"),
		StayAtCeiling: rapid.Bool().Draw(t, "stay"),
	}
	for _, x := range rapid.SliceOfN(d, 1, 4).Draw(t, "delays") {
		v.Delays = append(v.Delays, time.Duration(x))
	}
	if rapid.IntRange(0, 4).Draw(t, "func") == 0 {
		returns := time.Duration(rapid.Int64().Draw(t, "returns"))
		v.Func = func(int) time.Duration { return returns }
	}
	v = v.WithRetryDefaults()
	if err := v.Validate(); err != nil {
		t.Fatalf("%+v: %v", v, err)
	}
	return v
}

func anyCount(t *rapid.T) int {
	return rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(math.MinInt, math.MaxInt), rapid.Just(math.MaxInt)).Draw(t, "n")
}

func TestBackoff_staysInsideZeroAndMaxAndIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, n := anyBackoff(t), anyCount(t)
		random := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "random")
		fixed := func() float64 { return random }
		base, d := b.Base(n), b.delay(n, fixed)
		if base < 0 || base > b.Max || d < 0 || d > b.Max {
			t.Fatalf("base %v, delay %v, max %v", base, d, b.Max)
		}
		if again := b.delay(n, fixed); again != d {
			t.Fatalf("the same n and random number give %v, then %v", d, again)
		}
		if b.Policy == Slots && b.Func == nil {
			if d > base {
				t.Fatalf("a slot of %v is beyond the largest, %v", d, base)
			}
			return
		}
		lo, hi := float64(base)*(1-*b.Jitter), float64(base)*(1+*b.Jitter)
		if float64(d) < lo-lo/1e9-1 || float64(d) > hi+hi/1e9+1 {
			t.Fatalf("delay %v is outside the jitter %v of %v", d, *b.Jitter, base)
		}
		if r := b.Delay(n); r < 0 || r > b.Max {
			t.Fatalf("Delay is %v, max %v", r, b.Max)
		}
	})
}

func TestBackoff_growsWithTheFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, n := anyBackoff(t), max(0, anyCount(t))
		b.Func = nil
		b.Policy = rapid.SampledFrom([]Policy{exponential, Linear, Fibonacci}).Draw(t, "growing policy")
		if n < math.MaxInt && b.Base(n+1) < b.Base(n) {
			t.Fatalf("base(%d) is %v, base(%d) is %v", n, b.Base(n), n+1, b.Base(n+1))
		}
		if b.Base(0) != min(b.Min, b.Max) {
			t.Fatalf("the first delay is %v, min is %v", b.Base(0), b.Min)
		}
	})
}

func TestBackoff_slotsStartAgainOrStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{Ceiling: rapid.IntRange(1, 62).Draw(t, "ceiling"), StayAtCeiling: rapid.Bool().Draw(t, "stay")}
		n := max(0, anyCount(t))
		e := b.exponent(n)
		if e < 0 || e > b.Ceiling {
			t.Fatalf("exponent %d, ceiling %d", e, b.Ceiling)
		}
		if n == math.MaxInt {
			return
		}
		want := e + 1
		if e == b.Ceiling {
			want = 0
			if b.StayAtCeiling {
				want = e
			}
		}
		if next := b.exponent(n + 1); next != want {
			t.Fatalf("after %d comes %d, want %d", e, next, want)
		}
	})
}

func TestBackoff_validateRejects(t *testing.T) {
	for want, b := range map[string]Backoff{
		`policy: unknown policy "quadratic"`: {Policy: "quadratic"},
		"min: must be above 0":               {Min: -1},
		"max: must be at least min":          {Min: time.Minute, Max: time.Second},
		"jitter: must be 0 to 1 (got -0.1)":  {Jitter: new(-0.1)},
		"jitter: must be 0 to 1 (got 1.5)":   {Jitter: new(1.5)},
		"jitter: must be 0 to 1 (got NaN)":   {Jitter: new(math.NaN())},
		"slot: must be above 0":              {Policy: Slots, Slot: -1},
		"ceiling: must be 1 to 62 (got 63)":  {Policy: Slots, Ceiling: 63},
		"ceiling: must be 1 to 62 (got -1)":  {Policy: Slots, Ceiling: -1},
		"delays: the schedule policy needs":  {Policy: Schedule},
		"delays[1]: must not be negative":    {Policy: Schedule, Delays: []time.Duration{1, -1}},
	} {
		if err := b.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: error %v, want %s", b, err, want)
		}
	}
	if err := (Backoff{Policy: "x", Jitter: new(2.0), Min: -1}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not every fault at once: %v", err)
	}
	if err := (Backoff{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

// A float64 does not hold every duration.
func TestBackoff_regressionTheFirstDelayIsExactlyMin(t *testing.T) {
	none := 0.0
	b := Backoff{Policy: exponential, Min: 1<<53 + 1, Max: math.MaxInt64, Jitter: &none}
	if d := b.Base(0); d != b.Min {
		t.Errorf("the first delay is %d ns, min is %d", d, b.Min)
	}
}
