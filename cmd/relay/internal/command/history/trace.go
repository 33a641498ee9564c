package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/cmd/relay/internal/waiting"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

func newTrace(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "trace ID|STREAM/SEQUENCE", Short: "the life of one message: when it was published, each failure, where it is, what happens next", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Trace gathers what is stored of a message: in its stream, in its durables, the record of its attempts, the retry stream, the
dead letters with the failures before each replay, and what instances say of its key. The ID is that of the log, of handlers (Relay-Id)
and of dead letters. With archive.outcomes trace also says when, how and by which
instance a message was finished; without it trace says only that the durable has settled the message.`,
		Example: "  relay trace ORDERS/17\n  relay trace 'ORDERS~billing~17~djeyvh9o2bcd' --json",
		RunE: func(c *cobra.Command, a []string) error {
			l, err := parseTraced(a[0])
			if err != nil {
				return err
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				if err := l.gather(ctx, cl); err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(c.OutOrStdout(), l)
				}
				l.print(c.OutOrStdout())
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// life is what is known of one message, as --json prints it.
type life struct {
	console.Life
	told    map[deadOnce]bool // of which Past tells already
	copies  []copied          // of routes with partitions
	noted   time.Time         // what the id says: of a route with partitions when the copy was made
	missing error             // why its stream cannot have it; what is stored elsewhere may tell of it all the same
}

// deadOnce is one time that a message was dead-lettered: before its first replay, or after one.
type deadOnce struct {
	durable string
	replay  int
}

// parseTraced reads an id, or stream and sequence.
func parseTraced(s string) (*life, error) {
	parts := strings.Split(s, "~")
	if len(parts) != 4 {
		stream, seq, err := waiting.ParseID(s)
		if err != nil {
			return nil, fmt.Errorf("%w; or write the id of the message", err)
		}
		return &life{Life: console.Life{Stream: stream, Sequence: seq}, told: map[deadOnce]bool{}}, nil
	}
	stream, err1 := url.PathUnescape(parts[0])
	durable, err2 := url.PathUnescape(parts[1])
	seq, err3 := strconv.ParseUint(parts[2], 10, 64)
	ns, err4 := strconv.ParseInt(parts[3], 36, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil || stream == "" || durable == "" || seq == 0 {
		return nil, fmt.Errorf("%w: %q is not the id of a message (STREAM~CONSUMER~SEQUENCE~TIME, or STREAM/SEQUENCE)", cli.ErrUsage, s)
	}
	at := time.Unix(0, ns).UTC()
	return &life{Life: console.Life{Stream: stream, Consumer: durable, Sequence: seq, Published: &at}, told: map[deadOnce]bool{}}, nil
}

// gather asks for all that is stored.
func (l *life) gather(ctx context.Context, cl *cli.Client) error {
	r, err := waiting.Open(ctx, cl)
	if err != nil {
		return err
	}
	if err := l.findRoutes(ctx, cl, r); err != nil {
		return err
	}
	if err := l.inStream(ctx, cl); err != nil {
		return err
	}
	if err := l.findCopies(ctx, cl); err != nil {
		return err
	}
	var failed error
	err = r.Each(ctx, "", func(m waiting.Message) bool {
		if i := slices.IndexFunc(l.copies, func(c copied) bool { return c.in.Name() == m.Stream && c.sequence == m.Sequence }); i >= 0 {
			m.Routes = []string{l.copies[i].route}
		} else if m.Stream != l.Stream || m.Sequence != l.Sequence {
			return true
		}
		var mine bool
		if mine, failed = l.same(ctx, cl, m); mine {
			l.waits(m)
		}
		return failed == nil
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if err := l.deadLetters(ctx, cl); err != nil {
		return err
	}
	ended, err := l.archived(ctx, cl)
	if err != nil {
		return err
	}
	if l.missing != nil && len(l.Past) == 0 && len(l.Places) == 0 {
		return l.missing
	}
	if err := l.durables(ctx, cl, r); err != nil {
		return err
	}
	for i := range l.Places {
		if p := &l.Places[i]; p.Where == "through" && ended[p.Durable] != "" {
			p.Next = "nothing: " + ended[p.Durable]
		}
	}
	slices.SortStableFunc(l.Past, func(a, b console.Happening) int {
		if a.Time == nil || b.Time == nil {
			return 0
		}
		return a.Time.Compare(*b.Time)
	})
	return nil
}

// same tells whether what waits is this message, and not one that had the sequence before the stream or the durable was made anew, or
// has it since.
func (l *life) same(ctx context.Context, cl *cli.Client, m waiting.Message) (bool, error) {
	if m.Parked != nil {
		return l.isOf(m.Durable, m.Parked.Time), nil
	}
	if l.Replaced || l.Gone {
		return false, nil
	}
	c, err := cl.JS.Consumer(ctx, m.Stream, m.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, nil
	}
	return err == nil && c.CachedInfo().Created.Equal(m.Made), err
}

// inStream looks for the message itself.
func (l *life) inStream(ctx context.Context, cl *cli.Client) error {
	stream, err := cl.JS.Stream(ctx, l.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		l.Gone = true
		l.missing = cli.Said(fmt.Sprintf("there is no stream %s, and nothing is stored of message %d", cli.Printable(l.Stream), l.Sequence), console.ErrNotFound)
		return nil
	}
	if err != nil {
		return err
	}
	m, err := stream.GetMsg(ctx, l.Sequence)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		last := stream.CachedInfo().State.LastSeq
		if l.Replaced = l.Sequence > last; l.Replaced && l.Published == nil {
			l.missing = cli.Said(fmt.Sprintf("stream %s has no message %d yet: its last one is %d", cli.Printable(l.Stream), l.Sequence, last), console.ErrNotFound)
		}
	case err != nil:
		return err
	case l.Published != nil && !m.Time.Equal(*l.Published), !l.noted.IsZero() && m.Time.After(l.noted.Add(clocks)):
		l.Replaced = true
	default:
		at := m.Time.UTC()
		l.Stored, l.Published, l.Subject = true, &at, m.Subject
	}
	return nil
}

// waits notes that the message failed and waits.
func (l *life) waits(m waiting.Message) {
	l.Subject = cli.Or(l.Subject, m.Subject)
	p := console.Place{Where: m.Where, Durable: m.Durable, Route: strings.Join(m.Routes, ", "), Due: m.Due}
	p.Text = fmt.Sprintf("waits in durable %s after %d %s", m.Durable, m.Attempts, cli.Plural(m.Attempts, "attempt"))
	if m.Parked != nil {
		p.Text = fmt.Sprintf("is parked in the retry stream after %d %s", m.Attempts, cli.Plural(m.Attempts, "attempt"))
		l.learn(m.Parked.Origin)
	}
	p.Next = "its next attempt is due " + cli.Whenever(m.Due) + "; relay resume ROUTE ends the waits of a route"
	if m.Parked != nil {
		p.Next = "it comes back to its route " + cli.Whenever(m.Due) + "; relay retries now makes it due at once"
	}
	if m.Dead != "" {
		p.Text, p.Next = "waits to be dead-lettered ("+m.Dead+"), because its dead letter could not be stored yet", "relay retries to store its dead letter"
	}
	l.failures(m.First, m.Last, m.Attempts, cli.Or(m.Fault, m.Error))
	l.Places = append(l.Places, p)
}

// learn takes over what travels with a message.
func (l *life) learn(o retry.Origin) {
	if l.Published == nil && !o.Time.IsZero() {
		at := o.Time.UTC()
		l.Published = &at
	}
	l.Subject = cli.Or(l.Subject, o.Subject)
	for _, p := range o.Past {
		at, job := p.Time.UTC(), ""
		if p.Job != "" {
			job = ", replayed by job " + p.Job
		}
		l.told[deadOnce{o.Consumer, p.Replay}] = true
		l.Past = append(l.Past, console.Happening{Time: &at, What: fmt.Sprintf("was dead-lettered (%s) after %d %s, and replayed since%s", p.Reason, p.Attempts, cli.Plural(p.Attempts, "attempt"), job), Error: p.Error})
	}
	if o.Edited != "" {
		l.Past = append(l.Past, console.Happening{What: "its body was edited by job " + o.Edited})
	}
}

// failures notes the first failure and the last one: of those between them nothing is stored.
func (l *life) failures(first, last *time.Time, attempts int, why string) {
	if attempts > 1 && first != nil && (last == nil || !first.Equal(*last)) {
		l.Past = append(l.Past, console.Happening{Time: first, What: "failed for the first time"})
	}
	if last != nil {
		l.Past = append(l.Past, console.Happening{Time: last, What: fmt.Sprintf("failed, attempt %d", attempts), Error: why})
	}
}

// deadLetters looks for the message there.
func (l *life) deadLetters(ctx context.Context, cl *cli.Client) error {
	store, err := dlq.Attach(ctx, cl.JS, cl.Config.Service)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	f := dlq.Filter{}
	if subject.ValidateLiteral(l.Subject) == nil {
		f.Subject = l.Subject // which the server matches
	}
	for e, err := range store.List(ctx, f) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if bad := (*dlq.EntryError)(nil); errors.As(err, &bad) {
			continue // it is nobody's
		}
		if err != nil {
			return fmt.Errorf("the dead letters: %w", err)
		}
		if e.Stream != l.Stream || e.Sequence != l.Sequence || !l.isOf(e.Consumer, e.Time) {
			continue
		}
		l.learn(e.Origin)
		l.failures(cli.KnownTime(e.FirstFailure), cli.KnownTime(e.LastFailure), e.Attempts, e.LastError)
		at := e.StoredTime.UTC()
		l.told[deadOnce{e.Consumer, e.Replay}] = true
		l.Past = append(l.Past, console.Happening{Time: &at, What: fmt.Sprintf("was dead-lettered (%s) by instance %s", e.Reason, e.Instance)})
		l.Places = append(l.Places, console.Place{
			Where: "dead", Durable: e.Consumer, Route: e.Route, Text: fmt.Sprintf("is dead letter %d of route %s", e.StoredSequence, e.Route),
			Next: fmt.Sprintf("nothing, until somebody replays it: relay dlq show %d", e.StoredSequence), Number: e.StoredSequence,
		})
	}
	return nil
}

// archived looks for what became of the message, and says in a few words what was the last of that in each durable. Records are left out of
// dead letters that Past tells of.
func (l *life) archived(ctx context.Context, cl *cli.Client) (ended map[string]string, err error) {
	since := time.Time{}
	if l.Published != nil {
		since = *l.Published
	}
	list, err := archive.Find(ctx, cl.JS, cl.Config.Service, l.Stream, l.Sequence, since)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the archive: %w", err)
	}
	ended = make(map[string]string)
	for _, f := range list {
		if l.Consumer != "" && f.Durable != l.Consumer || !l.isOf(f.Durable, f.Published) {
			continue
		}
		what := outcomeOf(f)
		ended[f.Durable] = "it was " + what
		if f.Outcome == archive.Dead {
			ended[f.Durable] += ", and is not a dead letter any more"
			if l.told[deadOnce{f.Durable, f.Replay}] {
				continue
			}
		}
		at, text := f.Ended, fmt.Sprintf("was %s by route %s on instance %s after %d %s", what, f.Route, f.Instance, f.Attempts, cli.Plural(f.Attempts, "attempt"))
		if l.Published == nil { // the stream may have been made anew since
			text += ", published " + cli.When(f.Published)
		}
		l.Past = append(l.Past, console.Happening{Time: &at, What: text, Result: resultOf(f)})
	}
	return ended, nil
}

func outcomeOf(f archive.Found) string {
	if f.Outcome == archive.Dead {
		return f.Outcome.String() + " (" + f.Reason + ")"
	}
	return f.Outcome.String()
}

func resultOf(f archive.Found) string {
	if f.Cut {
		return string(f.Result) + "…"
	}
	return string(f.Result)
}

// durables says how far those are that may have the message, when nothing else is known.
func (l *life) durables(ctx context.Context, cl *cli.Client, r *waiting.Reader) error {
	if l.Replaced || l.Gone {
		if len(l.Places) == 0 {
			why := " was created again"
			if l.Gone {
				why = " does not exist any more"
			}
			l.Places = append(l.Places, console.Place{Where: "nowhere", Text: "is gone: stream " + l.Stream + why, Next: "nothing"})
		}
		return nil // they have other messages
	}
	routes := cl.Config.Routes
	for _, durable := range slices.Sorted(maps.Keys(r.Routes)) {
		names := r.Routes[durable]
		if l.Consumer != "" && durable != l.Consumer {
			continue
		}
		if i := slices.IndexFunc(l.copies, func(c copied) bool { return c.durable == durable }); i >= 0 {
			if err := l.inPartition(ctx, cl, l.copies[i]); err != nil {
				return err
			}
			continue
		}
		c, err := cl.JS.Consumer(ctx, l.Stream, durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		info, mine := c.CachedInfo(), names
		if l.Subject != "" && len(routes) > 0 {
			mine = nil
			for _, rt := range routes {
				if slices.Contains(names, rt.Name) && slices.ContainsFunc(rt.Subjects, func(p string) bool { return subject.Matches(p, l.Subject) }) {
					mine = append(mine, rt.Name)
				}
			}
			if len(mine) == 0 {
				continue
			}
		}
		l.inDurable(ctx, cl, info, l.Sequence, strings.Join(mine, ", "), mine)
	}
	if len(l.Places) == 0 {
		l.Places = append(l.Places, console.Place{Where: "nowhere", Text: "does not wait anywhere that relay knows", Next: "nothing: no route of the configuration has its subject, or the message was settled before a durable was created again"})
	}
	return nil
}

// inDurable is where the message stands in a durable, where it has that sequence.
func (l *life) inDurable(ctx context.Context, cl *cli.Client, info *jetstream.ConsumerInfo, sequence uint64, route string, names []string) {
	p := console.Place{Where: "durable", Durable: info.Name, Route: route}
	switch {
	case sequence > info.Delivered.Stream && l.Stored:
		p.Where = "stream"
		p.Text = fmt.Sprintf("was not delivered yet: durable %s is at sequence %d, and %d messages wait in it", info.Name, info.Delivered.Stream, info.NumPending)
		p.Next = "it is delivered after the messages before it; " + l.standing(ctx, cl, names)
	case slices.ContainsFunc(l.Places, func(o console.Place) bool { return o.Durable == info.Name }):
		return // where it is is known
	case sequence > info.Delivered.Stream:
		p.Text, p.Next = "was removed from its stream before durable "+info.Name+" delivered it", "nothing: the message is gone"
	case sequence <= info.AckFloor.Stream:
		p.Where = "through"
		p.Text = "is settled: durable " + info.Name + " has settled all messages up to sequence " + strconv.FormatUint(info.AckFloor.Stream, 10)
		p.Next = "nothing: it was done, dropped, expired or forgotten, or a dead letter that was discarded or replayed since"
	default:
		p.Text = fmt.Sprintf("was delivered by durable %s: it is in a handler, in the memory of an instance, or done while an earlier message is not", info.Name)
		p.Next = l.standing(ctx, cl, names)
	}
	l.Places = append(l.Places, p)
}

// standing is what instances say of the route and key of the message.
func (l *life) standing(ctx context.Context, cl *cli.Client, names []string) string {
	a, err := control.Ask(ctx, cl.Conn.Conn, cl.Config.Service, control.StatusRequest{Keys: 1000})
	if err != nil {
		return "no instance answers: relay run is not running, or cannot be reached"
	}
	for _, s := range a.Instances {
		for _, rt := range s.Routes {
			if !slices.Contains(names, rt.Name) {
				continue
			}
			for _, k := range rt.Waiting {
				if k.Key == keyFor(rt.Key, l.Subject) {
					return fmt.Sprintf("its key %q is %s since %s on %s: %s; next try %s", k.Key, k.State, cli.When(k.Since), s.Instance, cli.Or(k.Why, "-"), cli.Whenever(k.Until))
				}
			}
			if rt.State != control.StateFlowing {
				return fmt.Sprintf("route %s is %s on %s: %s", rt.Name, rt.State, s.Instance, cli.Or(rt.Why, "-"))
			}
		}
	}
	return "its route flows"
}

// keyFor is the key of a message by the route's setting.
func keyFor(setting, literal string) string {
	switch setting {
	case "subject":
		return literal
	case "route":
		return ""
	}
	t, err := subject.ParseTemplate(setting)
	if err != nil {
		return literal
	}
	key, err := t.Expand(literal)
	if err != nil {
		return literal
	}
	return key
}

func (l *life) print(w io.Writer) {
	cli.Fields(w, [][]string{
		{"message", waiting.ID(l.Stream, l.Sequence)}, {"subject", cli.Or(l.Subject, "?")},
		{"published", cli.Whenever(l.Published) + "; " + l.InStream()},
	})
	rows := [][]string{}
	for _, h := range l.Past {
		text := h.What
		if h.Error != "" {
			text += ": " + h.Error
		}
		if h.Result != "" {
			text += "; its result: " + h.Result
		}
		rows = append(rows, []string{cli.Whenever(h.Time), text})
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		cli.Fields(w, rows)
	}
	for _, p := range l.Places {
		fmt.Fprintln(w)
		cli.Fields(w, [][]string{{"now", "it " + p.Text}, {"route", cmp.Or(p.Route, "-")}, {"next", p.Next}})
	}
}
