package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Policy is how the delays of a [Backoff] grow.
type Policy string

// The backoff policies. The default, exponential, needs no name: min·2ⁿ up to max.
const (
	exponential Policy = "exponential"
	Linear      Policy = "linear"    // min·(n+1) up to max
	Fibonacci   Policy = "fibonacci" // min·1, 1, 2, 3, 5, … up to max
	Constant    Policy = "constant"  // min
	Schedule    Policy = "schedule"  // the delays listed, the last one for ever
	Slots       Policy = "slots"     // slot·(2^rand(0..n) − 1): the truncated binary exponential backoff of Ethernet
)

// Backoff says how long to wait after the n-th failure. It is an immutable value: a delay is a pure function of the
// number of failures so far (and of a random number), so the state between two failures is that number alone.
//
// The zero value is exponential from 500ms to 10m with a jitter of 0.2.
type Backoff struct {
	// Policy is how delays grow. Empty means exponential: min·2ⁿ up to max.
	Policy Policy `koanf:"policy"`
	// Min is the first delay. Zero means 500ms.
	Min time.Duration `koanf:"min"`
	// Max caps every delay, jitter included. Zero means 10m.
	Max time.Duration `koanf:"max"`
	// Jitter spreads a delay by this fraction each way, 0 to 1. Nil means 0.2. The slots policy is random by itself and
	// takes none.
	Jitter *float64 `koanf:"jitter"`
	// Delays are the steps of the schedule policy.
	Delays []time.Duration `koanf:"delays"`
	// Slot is the slot time of the slots policy. Zero means Min.
	Slot time.Duration `koanf:"slot"`
	// Ceiling is the largest exponent of the slots policy, 1 to 62. Zero means 10.
	Ceiling int `koanf:"ceiling"`
	// StayAtCeiling keeps the exponent at the ceiling; otherwise the count starts again from 0 once it was reached.
	StayAtCeiling bool `koanf:"stay_at_ceiling"`
	// Func replaces the policy: the delay after n failures (n starts at 0). Max still caps it, jitter is added to it. It must
	// always return the same for the same n: it is called before the first message, for n below 64, and the last of these
	// delays stands for all that follow. One that panics is a fault.
	Func func(n int) time.Duration `koanf:"-"`
}

func (b Backoff) withDefaults(lo, hi time.Duration) Backoff {
	b.Policy = cmp.Or(b.Policy, exponential)
	b.Min = cmp.Or(b.Min, lo)
	b.Max = cmp.Or(b.Max, max(hi, b.Min))
	b.Ceiling = cmp.Or(b.Ceiling, 10)
	b.Slot = cmp.Or(b.Slot, b.Min)
	if b.Jitter == nil {
		b.Jitter = new(0.2)
	}
	return b
}

// WithRetryDefaults fills the zero fields with the defaults of a message's retry policy: exponential, 500ms to 10m.
func (b Backoff) WithRetryDefaults() Backoff {
	return b.withDefaults(500*time.Millisecond, 10*time.Minute)
}

// WithRestartDefaults fills the zero fields with the defaults of a key's restart policy: exponential, 200ms to 1m.
func (b Backoff) WithRestartDefaults() Backoff {
	return b.withDefaults(200*time.Millisecond, time.Minute)
}

// Validate returns every fault, each beginning with the field's config name.
func (b Backoff) Validate() error {
	b = b.WithRetryDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch b.Policy {
	case exponential, Linear, Fibonacci, Constant:
	case Slots:
		if b.Slot < 0 {
			fault("slot: must be above 0 (got %v)", b.Slot)
		}
		if b.Ceiling < 1 || b.Ceiling > 62 {
			fault("ceiling: must be 1 to 62 (got %d)", b.Ceiling)
		}
	case Schedule:
		if len(b.Delays) == 0 {
			fault("delays: the schedule policy needs at least one")
		}
		for i, d := range b.Delays {
			if d < 0 {
				fault("delays[%d]: must not be negative (got %v)", i, d)
			}
		}
	default:
		fault("policy: unknown policy %q (exponential, linear, fibonacci, constant, schedule or slots)", b.Policy)
	}
	if b.Func != nil {
		for n := range asked {
			if _, err := b.call(n); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	if b.Min < 0 {
		fault("min: must be above 0 (got %v)", b.Min)
	}
	if b.Max < b.Min {
		fault("max: must be at least min (got %v, min is %v)", b.Max, b.Min)
	}
	if j := *b.Jitter; !(j >= 0 && j <= 1) {
		fault("jitter: must be 0 to 1 (got %v)", j)
	}
	return errors.Join(errs...)
}

// asked is for how many failures Validate asks a Func.
const asked = 64

// call is Func, which may panic.
func (b Backoff) call(n int) (d time.Duration, err error) {
	defer func() {
		if v := recover(); v != nil {
			d, err = b.Max, fmt.Errorf("func: it panics for n = %d: %v", n, v)
		}
	}()
	return b.Func(n), nil
}

// Delay is the wait after the failure number n, which starts at 0, with jitter, inside [0, Max]. Fields must be filled
// (see WithRetryDefaults). It may be called from any goroutine.
func (b Backoff) Delay(n int) time.Duration { return b.delay(n, rand.Float64) }

// delay is Delay with the source of randomness, in [0, 1), as an argument.
func (b Backoff) delay(n int, random func() float64) time.Duration {
	if b.Func == nil && b.Policy == Slots {
		return min(b.slots(n, random), b.Max)
	}
	base := b.Base(n)
	if j := *b.Jitter; j > 0 {
		base = saturate(float64(base) * (1 + j*(2*random()-1)))
	}
	return max(0, min(base, b.Max))
}

// Base is the delay after the failure number n before jitter, inside [0, Max]. Of the slots policy it is the largest
// possible delay.
func (b Backoff) Base(n int) time.Duration {
	n = max(n, 0)
	var d time.Duration
	switch {
	case b.Func != nil:
		d = b.Func(n)
	case b.Policy == Linear:
		d = times(b.Min, float64(n)+1)
	case b.Policy == Fibonacci:
		d = times(b.Min, fibonacci(n))
	case b.Policy == Constant:
		d = b.Min
	case b.Policy == Schedule:
		d = b.Delays[min(n, len(b.Delays)-1)]
	case b.Policy == Slots:
		d = times(b.Slot, math.Exp2(float64(b.exponent(n)))-1)
	default:
		d = times(b.Min, math.Exp2(float64(n)))
	}
	return max(0, min(d, b.Max))
}

// slots waits slot·(2^k − 1) for a k drawn from 0 to the exponent.
func (b Backoff) slots(n int, random func() float64) time.Duration {
	k := math.Floor(random() * float64(b.exponent(n)+1))
	return times(b.Slot, math.Exp2(k)-1)
}

// exponent counts 1, 2, …, Ceiling and then stays, or starts again at 0.
func (b Backoff) exponent(n int) int {
	n = max(n, 0)
	if b.StayAtCeiling {
		return min(n, b.Ceiling-1) + 1
	}
	return (n%(b.Ceiling+1) + 1) % (b.Ceiling + 1)
}

// fibonacci saturates at +Inf rather than overflow.
func fibonacci(n int) float64 {
	if n > 1500 { // F(1476) is the last one a float64 holds
		return math.Inf(1)
	}
	a, b := 1.0, 1.0
	for range n {
		a, b = b, a+b
	}
	return a
}

func times(d time.Duration, f float64) time.Duration {
	switch {
	case d == 0 || f == 0:
		return 0
	case f == 1:
		return d // exactly: a float64 has 53 bits
	}
	return saturate(float64(d) * f)
}

func saturate(f float64) time.Duration {
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(f)
}
