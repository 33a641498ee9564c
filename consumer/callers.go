package consumer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/subject"
)

// ErrForgotten is the cause with which the context of a handler is cancelled when the caller of its message does not want it any
// more; see [Interest]. What the handler returns then does not count, unless it is a success, [Dead] or [Drop].
var ErrForgotten = caller.ErrForgotten

// StillWanted checks once more whether the message should start: has its deadline passed, and does its caller still want it? A handler whose
// messages wait for something of its own, such as a free process, calls it just before the work begins, and returns its error unchanged; no
// attempt is spent then. relay makes the same check before it calls the handler, so other handlers do not need it, and without a wait of a
// second, or of interest.timeout after a yes, it returns at once. It blocks as long as the caller takes to answer, for 250ms or
// interest.timeout at most; whoever does not answer is taken to want the message still.
func (m *Msg) StillWanted(ctx context.Context) error {
	if m.gate == nil {
		return nil
	}
	return m.gate(ctx)
}

// Caller says what the headers of a message may ask of relay. A header that makes relay publish gives its publisher the
// permissions of relay, so the route must permit it. A header that is not permitted here is refused, counted and logged,
// and the message is handled without it.
type Caller struct {
	// Reply are patterns of the subjects to which Relay-Reply-To may have results sent. None by default. The first token of a pattern
	// must not be a wildcard; subjects of the server ($…) and of relay itself are never permitted.
	Reply []string `koanf:"reply"`
	// Interest are patterns of the subjects that Relay-Interest may have asked.
	Interest []string `koanf:"interest"`
	// MaxResult is how many bytes of a result are sent; more is cut, and the caller is told. Zero means 256KiB. What the server's
	// max_payload does not take is cut in any case.
	MaxResult Bytes `koanf:"max_result"`
}

// Deadline is what becomes of messages whose Relay-Deadline, or Relay-Expires-In, is over before they start.
type Deadline struct {
	// OnExpired is drop (default: acknowledged and counted) or dead_letter (with reason expired). The caller is told either way.
	OnExpired string `koanf:"on_expired"`
}

// What Deadline.OnExpired says. The default needs no name.
const (
	expiredDrop       = "drop"
	ExpiredDeadLetter = "dead_letter"
)

// Interest is how the caller of a message with Relay-Interest is asked, before each attempt, whether it is still wanted.
type Interest struct {
	// Timeout is how long the answer may take. Zero means 250ms; 10ms to 10s. It is not part of the attempt's timeout.
	Timeout time.Duration `koanf:"timeout"`
	// Unknown is what becomes of a message whose caller does not answer in time: start (default) or drop, which forgets it.
	Unknown string `koanf:"unknown"`
	// Every is how often the caller is asked again while the handler runs. When it does not want the message any more, the
	// handler's context is cancelled with [ErrForgotten] as the cause. Zero: not at all; else at least 100ms.
	Every time.Duration `koanf:"every"`
}

// What Interest.Unknown says. The default needs no name.
const (
	unknownStart = "start"
	UnknownDrop  = "drop"
)

// validateCallers says what is wrong with what callers may do.
func (r Route) validateCallers(fault func(format string, args ...any)) {
	for key, patterns := range map[string][]string{"reply": r.Caller.Reply, "interest": r.Caller.Interest} {
		for i, p := range patterns {
			at := fmt.Sprintf("caller.%s[%d]: ", key, i)
			switch err := subject.ValidatePattern(p); {
			case err != nil:
				fault("%s%w", at, err)
			case strings.HasPrefix(p, "*") || strings.HasPrefix(p, ">"):
				fault("%s%q begins with a wildcard: name the first token of the subjects, such as _INBOX.>", at, p)
			case strings.HasPrefix(p, "$"):
				fault("%s%q belongs to the server", at, p)
			}
		}
	}
	if r.Caller.MaxResult < 0 {
		fault("caller.max_result: must be above 0 (got %v)", r.Caller.MaxResult)
	}
	if v := r.Deadline.OnExpired; v != expiredDrop && v != ExpiredDeadLetter {
		fault("deadline.on_expired: must be drop or dead_letter (got %q)", v)
	}
	if d := r.Interest.Timeout; d < 10*time.Millisecond || d > 10*time.Second {
		fault("interest.timeout: must be 10ms to 10s (got %v)", d)
	}
	if v := r.Interest.Unknown; v != unknownStart && v != UnknownDrop {
		fault("interest.unknown: must be start or drop (got %q)", v)
	}
	if d := r.Interest.Every; d != 0 && d < 100*time.Millisecond {
		fault("interest.every: must be at least 100ms, or 0s for never (got %v)", d)
	}
}
