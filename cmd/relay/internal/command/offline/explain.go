package offline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/supervisor"
)

func newExplain(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "explain SUBJECT", Short: "the route a subject takes, its policy, and the timeline of its retries", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Explain says which route of the configuration handles a subject and what happens to a message on it that keeps
failing: when each attempt starts, when its key waits, and where it ends. It does not talk to a server. Delays are
those without jitter, which may add as much as its column says, up to retry.max, or take it away.`,
		RunE: func(c *cobra.Command, a []string) error {
			if err := subject.ValidateLiteral(a[0]); err != nil {
				return fmt.Errorf("%w: subject: %w", cli.ErrUsage, err)
			}
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			e, ok := explain(cfg, a[0])
			if !ok {
				return fmt.Errorf("no route handles %s: its messages stay in their stream", a[0])
			}
			if asJSON {
				return cli.PrintJSON(c.OutOrStdout(), e)
			}
			e.print(c.OutOrStdout())
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// explanation is what explain knows of a subject.
type explanation struct {
	Subject   string    `json:"subject"`
	Route     string    `json:"route"`
	Pattern   string    `json:"pattern"`
	Stream    string    `json:"stream,omitempty"`
	Durable   string    `json:"durable"`
	Handler   string    `json:"handler"`
	Key       string    `json:"key"`
	Order     string    `json:"order"`
	Instances string    `json:"instances"`
	Timeout   string    `json:"timeout"`
	Attempts  int       `json:"max_attempts"`
	MaxAge    string    `json:"max_age"`
	Timeline  []attempt `json:"timeline"`
	Trip      int       `json:"trip_after"`
	Restarts  []string  `json:"restart_delays"`
	Dead      string    `json:"dead_letter_subject"`
	// Batch is how messages are handed over together.
	Batch string `json:"batch,omitempty"`
	// Fallback is the second handler, and when it is used.
	Fallback string `json:"fallback,omitempty"`
	// Gates are what is asked before a message starts, in that order.
	Gates []string `json:"gates"`
	// Limits are what it needs room in.
	Limits []string `json:"limits,omitempty"`
}

type attempt struct {
	Number int    `json:"attempt"`
	After  string `json:"after"`         // the failure before
	Total  string `json:"total"`         // since the first attempt
	Where  string `json:"waits_in"`      // the consumer or the retry stream
	Jitter string `json:"jitter"`        // each way
	End    string `json:"end,omitempty"` // why there is no attempt after this one
}

// shownDelays is how many steps of a policy are shown.
const shownDelays = 10

func explain(cfg *config.Config, subj string) (*explanation, bool) {
	best, pattern := config.Route{}, ""
	for _, rt := range cfg.Routes {
		for _, p := range rt.Subjects {
			if subject.Matches(p, subj) && (pattern == "" || subject.Compare(p, pattern) < 0) {
				best, pattern = rt, p
			}
		}
	}
	if pattern == "" {
		return nil, false
	}
	rt := best.WithDefaults()
	e := &explanation{
		Subject: subj, Route: rt.Name, Pattern: pattern, Stream: rt.Stream, Durable: rt.Durable, Handler: best.Handler.String(),
		Key: keyOf(rt.Key, subj), Order: string(rt.Order), Instances: rt.Instances, Timeout: rt.Timeout.String(), Attempts: rt.Retry.MaxAttempts,
		MaxAge: rt.Retry.MaxAge.String(), Trip: *rt.Supervisor.TripAfter,
		Dead: fmt.Sprintf("%s.%s.<stream>.<seq>-<time>-<replay>.%s", cli.Or(rt.DeadLetter.Prefix, cfg.Service+".dlq"), rt.Name, subj),
	}
	if rt.Durable != rt.Name {
		e.Dead = strings.Replace(e.Dead, "<replay>", "<replay>-<mark of the durable>", 1)
	}
	e.Timeline = timeline(rt.Retry.Backoff, rt.Retry.MaxAttempts, rt.Retry.MaxAge, rt.Retry.ParkAfter)
	e.Gates, e.Limits = gates(rt), limitsOf(cfg, rt, subj)
	if b := rt.Batch; b != nil {
		e.Batch = fmt.Sprintf("%d messages or %v at once, after %v at most", b.Size, b.Bytes, b.Wait)
	}
	if best.Fallback != nil {
		e.Fallback = fallbackOf(best)
	}
	for n := range shownDelays {
		e.Restarts = append(e.Restarts, rt.Supervisor.Restart.Base(n).String())
	}
	return e, true
}

// fallbackOf says in a line what the second handler of a route is.
func fallbackOf(rt config.Route) string {
	f := rt.Fallback
	if f == nil {
		return "none"
	}
	return fmt.Sprintf("%s, %d at once, timeout %s, when %s", f.Handler.String(), f.Concurrency, f.Timeout, strings.Join(f.When, ", "))
}

// limitsOf says in words what the route needs room in.
func limitsOf(cfg *config.Config, rt consumer.Route, subj string) (list []string) {
	for _, name := range rt.Limits {
		l := cfg.Limits[name].WithDefaults()
		text := name + ":"
		if l.Concurrency > 0 {
			text += fmt.Sprintf(" %d at once", l.Concurrency)
		}
		if l.Rate.Count > 0 {
			text += fmt.Sprintf(" %v, bursts of %d", l.Rate, l.Burst)
		}
		if l.Per != "" {
			text += fmt.Sprintf(", for all of %s = %s", l.Per, keyOf(l.Per, subj))
		}
		list = append(list, text+", scope "+l.Scope)
	}
	if rt.Rate.Count > 0 {
		own := consumer.Limit{Rate: rt.Rate, Burst: rt.Burst}.WithDefaults()
		list = append(list, fmt.Sprintf("rate of the route: %v, bursts of %d, scope instance; RateLimit headers of an http endpoint lower it", own.Rate, own.Burst))
	}
	return list
}

// gates says in words what the headers of a message may have the route do.
func gates(rt consumer.Route) []string {
	expired := "acknowledged and counted"
	if rt.Deadline.OnExpired == consumer.ExpiredDeadLetter {
		expired = "dead-lettered (expired)"
	}
	list := []string{"deadline: past its Relay-Deadline or Relay-Expires-In a message is not started, but " + expired}
	if patterns := rt.Caller.Interest; len(patterns) == 0 {
		list = append(list, "interest: Relay-Interest is refused (caller.interest permits no subject)")
	} else {
		unknown := "the message starts"
		if rt.Interest.Unknown == consumer.UnknownDrop {
			unknown = "the message is forgotten"
		}
		text := fmt.Sprintf("interest: Relay-Interest under %s is asked before each attempt; answer no: the message is forgotten; no answer in %v: %s", strings.Join(patterns, ", "), rt.Interest.Timeout, unknown)
		if rt.Interest.Every > 0 {
			text += fmt.Sprintf("; asked every %v while the handler runs; the answer no cancels the handler", rt.Interest.Every)
		}
		list = append(list, text)
	}
	if patterns := rt.Caller.Reply; len(patterns) == 0 {
		return append(list, "reply: Relay-Reply-To is refused (caller.reply permits no subject)")
	} else {
		return append(list, fmt.Sprintf("reply: Relay-Reply-To under %s gets the outcome, with at most %v of the result", strings.Join(patterns, ", "), rt.Caller.MaxResult))
	}
}

// timeline is when the attempts of a message start that always fails at once.
func timeline(b supervisor.Backoff, attempts int, maxAge, parkAfter time.Duration) (list []attempt) {
	total := time.Duration(0)
	list = append(list, attempt{Number: 1, After: "0s", Total: "0s"})
	for n := 1; ; n++ {
		last := &list[len(list)-1]
		if attempts > 0 && n == attempts {
			last.End = "its attempts are spent: dead letter (exhausted)"
			return list
		}
		delay := b.Base(n - 1)
		if total += delay; total > maxAge || total < 0 {
			last.End = fmt.Sprintf("an attempt after %v would be too late: dead letter (expired)", maxAge)
			return list
		}
		if n > 1000 {
			return list
		}
		a := attempt{Number: n + 1, After: delay.String(), Total: total.String(), Where: "consumer"}
		if delay > parkAfter {
			a.Where = "retry stream"
		}
		if b.Jitter != nil && *b.Jitter > 0 && b.Policy != supervisor.Slots {
			a.Jitter = time.Duration(float64(delay) * *b.Jitter).String()
		}
		list = append(list, a)
	}
}

func keyOf(key, subj string) string {
	switch key {
	case "subject":
		return subj
	case "route":
		return "(the whole route)"
	}
	t, err := subject.ParseTemplate(key)
	if err != nil {
		return subj
	}
	k, err := t.Expand(subj)
	if err != nil {
		return subj + " (too few tokens for " + key + ")"
	}
	return k
}

func (e *explanation) print(w io.Writer) {
	rows := [][]string{
		{"subject", e.Subject},
		{"route", fmt.Sprintf("%s (by %s), durable %s", e.Route, e.Pattern, e.Durable)},
		{"handler", fmt.Sprintf("%s, timeout %s", e.Handler, e.Timeout)},
	}
	if e.Batch != "" {
		rows = append(rows, []string{"batch", e.Batch})
	}
	if e.Fallback != "" {
		rows = append(rows, []string{"fallback", e.Fallback})
	}
	key := fmt.Sprintf("%s, order %s", e.Key, e.Order)
	if e.Instances == consumer.InstancesOne {
		key += ", one instance at a time"
	}
	cli.Fields(w, append(rows, []string{"key", key}, []string{"dead letter", e.Dead}))
	fmt.Fprintf(w, "\nWhat its publisher may ask for:\n\n")
	for _, g := range e.Gates {
		fmt.Fprintf(w, "  %s\n", cli.Printable(g))
	}
	if len(e.Limits) > 0 {
		fmt.Fprintf(w, "\nWhat it needs room in before it starts:\n\n")
		for _, l := range e.Limits {
			fmt.Fprintf(w, "  %s\n", cli.Printable(l))
		}
	}
	fmt.Fprintf(w, "\nA message that keeps failing (delays before jitter):\n\n")
	rows = [][]string{{"ATTEMPT", "AFTER", "±JITTER", "IN TOTAL", "WAITS IN", ""}}
	for i, a := range e.Timeline {
		if len(e.Timeline) > 2*shownDelays && i == shownDelays {
			rows = append(rows, []string{"…", "", "", "", "", ""})
		}
		if len(e.Timeline) > 2*shownDelays && i >= shownDelays && i < len(e.Timeline)-1 {
			continue
		}
		rows = append(rows, []string{fmt.Sprint(a.Number), a.After, cli.Or(a.Jitter, "-"), a.Total, cli.Or(a.Where, "-"), a.End})
	}
	cli.Table(w, rows)
	switch e.Trip {
	case 0:
		fmt.Fprintf(w, "\nFailures never make the key wait (trip_after is 0); a panic or a hang does, before the next child, for:\n")
	case 1:
		fmt.Fprintf(w, "\nEach failure makes the key wait (trip_after is 1), and so does a panic or a hang, for:\n")
	default:
		fmt.Fprintf(w, "\nAfter %d failures in a row of at least two messages, or a panic or a hang, the key waits, for:\n", e.Trip)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(slices.Concat(e.Restarts, []string{"…"}), "  "))
}
