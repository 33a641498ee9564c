package chaos

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// Class is a way in which a run can be wrong.
type Class string

// The classes, in the words of docs/reliability.md.
const (
	Lost       Class = "lost"                // confirmed, neither handled nor dead-lettered
	Unexpected Class = "unexpected"          // handled, never published
	Duplicate  Class = "duplicate"           // handled more often than the faults explain
	Bystander  Class = "bystander"           // dead-lettered, though none of its own handlers failed or died
	DeadTwice  Class = "dead-lettered twice" // for one failure
	Both       Class = "handled and dead"    // in a run in which no lease was lost
	Attempts   Class = "attempts"            // not as many starts as the policy says
	Damaged    Class = "damaged"             // a dead letter is not what was published
	Stalled    Class = "stalled"             // nothing for 30 s, though NATS was there and messages waited
	NotDrained Class = "not drained"         // not at rest in time
	Orphan     Class = "orphan"              // a process that nobody owns
	Leaked     Class = "leaked"              // records, files or memory that do not come back
	Misplaced  Class = "dead letter missing" // a message that only fails is not among the dead letters
	Early      Class = "early"               // a retry before its delay was over
	Disordered Class = "out of order"        // a message that began before an earlier one of its key was handled
	Above      Class = "above the limit"     // more at once than a limit of the service allows
	NotFenced  Class = "not fenced"          // an instance that had lost its lease settled nevertheless
)

// Fault is one thing that was done, and what it may cost.
type Fault struct {
	What     string
	At       time.Time
	InFlight int  // delivered and not settled just then, by the server's count
	Acks     bool // a lone nats-server died: what it confirmed in its last 150 ms may be forgotten
	Crash    bool // of relay: may spend an attempt of what ran
}

// lastMoments is how far back a nats-server that is killed forgets confirmed acks (jetstream.md 2.8).
const lastMoments = 150 * time.Millisecond

func (w *World) fault(what string, at time.Time, inFlight int) *Fault {
	w.Note("%s, %d in flight", what, inFlight)
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &Fault{What: what, At: at, InFlight: inFlight}
	w.faults = append(w.faults, f)
	return f
}

// Cut notes a fault that the row injected itself.
func (w *World) Cut(what string) *Fault { return w.fault(what, time.Now(), w.InFlight()) }

// More adds what is in flight now to a fault that lasts.
func (w *World) More(f *Fault) {
	n := w.InFlight()
	w.mu.Lock()
	defer w.mu.Unlock()
	f.InFlight += n
}

// durables of the run: the route's own, and its due consumer on the retry stream.
func (w *World) durableInfo(ctx context.Context, stream, durable string) (*jetstream.ConsumerInfo, error) {
	c, err := w.js.Consumer(ctx, stream, durable)
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

// InFlight is what the route's durable has delivered and not heard of, NAKs that wait included; the last known number
// when the server does not answer.
func (w *World) InFlight() int {
	for range 3 {
		if n, err := w.inFlight(); err == nil {
			w.lastInFlight.Store(int64(n))
			break
		}
	}
	return int(w.lastInFlight.Load())
}

func (w *World) inFlight() (total int, err error) {
	if w.divided {
		return w.inFlightOfPartitions()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	for _, d := range [][2]string{{w.stream, "work"}, {"RELAY_RETRY", retry.DueDurable("work", w.stream)}} {
		info, err := w.durableInfo(ctx, d[0], d[1])
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		case err != nil:
			return 0, err
		default:
			total += info.NumAckPending
		}
	}
	return total, nil
}

// rest is what is not done yet.
type rest struct {
	pending, ackPending, parked int
	err                         error
}

func (r rest) done() bool { return r.err == nil && r.pending+r.ackPending+r.parked == 0 }

func (r rest) String() string {
	return fmt.Sprintf("pending %d, ack pending %d, in the retry stream %d, %v", r.pending, r.ackPending, r.parked, r.err)
}

func (w *World) rest() (r rest) {
	if w.divided {
		return w.restOfPartitions()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	info, err := w.durableInfo(ctx, w.stream, "work")
	if err != nil {
		r.err = err
		return r
	}
	r.pending, r.ackPending = int(info.NumPending), info.NumAckPending
	r.parked, r.err = w.inRetryStream(ctx)
	return r
}

// inRetryStream is how many messages are parked.
func (w *World) inRetryStream(ctx context.Context) (int, error) {
	s, err := w.js.Stream(ctx, "RELAY_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

// Expect is what the run may look like.
type Expect struct {
	// Within is how long it may take to come to rest.
	Within time.Duration
	// Bound replaces the bound of duplicates that follows from the faults; nil leaves it. Unbounded is for a full disk.
	Bound     *int
	Unbounded bool
	// MaxAttempts of the route. Zero means 3.
	MaxAttempts int
	// ExtraStarts is how many starts more than MaxAttempts a message may have beside those that faults explain; negative
	// means any number, and the row says why there can be no bound.
	ExtraStarts int
	// Each holds every message to the bound of starts, not only those that always fail: as many as its script says, MaxAttempts if that does not
	// say it. It is for rows whose handlers do what the scripts say and nothing else.
	Each bool
	// Moods is for rows whose handlers also fail by themselves: every message may have MaxAttempts, and one for each fault.
	Moods bool
	// Free, if not nil, are messages without a bound, in a row that says why.
	Free func(*Pub) bool
	// Delay checks that no retry starts sooner than this after its last failure.
	Delay time.Duration
	// Replayed messages may be dead-lettered again.
	Replayed bool
	// NoRest is for runs that end with messages waiting.
	NoRest bool
	// GoneOK are sequences that the stream lost by its own configuration.
	GoneOK func(*Pub) bool
	// Tolerate names classes that are reported and do not fail the run.
	Tolerate []Class
}

// Report is what the checker found.
type Report struct {
	Published, Unsure, Recovered, Starts, Handled, Dead int
	Duplicates, Bound                                   int
	Most, Beyond                                        int // starts of one message that only fails; how many had more than MaxAttempts
	Arithmetic                                          string
	RestAfter                                           time.Duration
	Wrong                                               map[Class][]string
}

// Letter is an entry of the dead-letter stream.
type Letter struct {
	dlq.Entry
}

// Letters reads all dead letters, with their bodies.
func (w *World) Letters() (list []Letter) {
	w.T.Helper()
	w.must("read the dead letters", func(ctx context.Context) error {
		list = nil
		s, err := dlq.Attach(ctx, w.js, "relay")
		if errors.Is(err, dlq.ErrNoStream) {
			return nil
		}
		if err != nil {
			return err
		}
		ctx, cancel := w.ctx(time.Minute)
		defer cancel()
		for e, err := range s.List(ctx, dlq.Filter{WithBody: true}) {
			if err != nil {
				return err
			}
			list = append(list, Letter{e})
		}
		return nil
	})
	return list
}

// Check waits for rest, joins the ledgers with the server's state, and fails the test with each class that it finds.
func (w *World) Check(e Expect) *Report {
	w.T.Helper()
	r := &Report{Wrong: make(map[Class][]string)}
	began := time.Now()
	if e.Within == 0 {
		e.Within = 30 * time.Second
	}
	var last rest
	if !e.NoRest {
		calm := 0
		if _, ok := w.Within(e.Within, func() bool {
			if last = w.rest(); last.done() {
				calm++
			} else {
				calm = 0
			}
			return calm > 2
		}); !ok {
			r.wrong(NotDrained, "after %v: %s", e.Within, last)
			w.askEmbedded()
		}
	}
	r.RestAfter = time.Since(began)
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	w.join(r, e)
	for _, s := range w.strays() {
		r.wrong(Orphan, "%s", s)
	}
	w.T.Logf("seed %d: %d published (%d unsure, %d of them appeared), %d starts, %d handled, %d dead-lettered, %d duplicates ≤ %s; at rest after %v",
		w.Seed, r.Published, r.Unsure, r.Recovered, r.Starts, r.Handled, r.Dead, r.Duplicates, r.Arithmetic, r.RestAfter.Round(10*time.Millisecond))
	for _, c := range slices.Sorted(maps.Keys(r.Wrong)) {
		list := r.Wrong[c]
		say := w.T.Errorf
		if slices.Contains(e.Tolerate, c) {
			say = w.T.Logf
		}
		say("%s: %d\n  %s", c, len(list), strings.Join(list[:min(len(list), 10)], "\n  "))
	}
	return r
}

// Wrong fails the run with something that only its row can see.
func (w *World) Wrong(c Class, format string, args ...any) {
	w.T.Helper()
	w.T.Errorf("%s: %s", c, fmt.Sprintf(format, args...))
}

func (r *Report) wrong(c Class, format string, args ...any) {
	r.Wrong[c] = append(r.Wrong[c], fmt.Sprintf(format, args...))
}

// join is the checker itself.
func (w *World) join(r *Report, e Expect) {
	w.mu.Lock()
	pubs, unsure, faults := w.pubs, w.unsure, slices.Clone(w.faults)
	w.mu.Unlock()
	if e.MaxAttempts == 0 {
		e.MaxAttempts = 3
	}
	byID, bySeq := make(map[string]*Pub), make(map[uint64]*Pub)
	for _, p := range pubs {
		if !p.Raw {
			byID[p.Script.ID] = p
		}
		bySeq[p.Seq] = p
	}
	maybe := make(map[string]*Pub)
	for _, p := range unsure {
		maybe[p.Script.ID] = p
	}
	runs := make(map[*Pub][]*ledger.Run)
	appeared := make(map[*Pub]bool)
	for _, run := range w.ledgers.Runs {
		p := byID[run.ID]
		if run.ID == "-" {
			p = bySeq[run.Seq]
		}
		if p == nil {
			if p = maybe[run.ID]; p != nil {
				appeared[p] = true
				p.Seq = run.Seq
				bySeq[p.Seq] = p
			}
		}
		if p == nil {
			r.wrong(Unexpected, "%s, sequence %d, attempt %d on %s", run.ID, run.Seq, run.Attempt, run.Instance)
			continue
		}
		runs[p] = append(runs[p], run)
	}
	for _, of := range runs { // each instance has a ledger of its own
		slices.SortStableFunc(of, func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) })
	}
	r.Published, r.Unsure, r.Recovered, r.Starts = len(pubs), len(unsure), len(appeared), len(w.ledgers.Runs)
	letters := make(map[*Pub][]Letter)
	for _, l := range w.Letters() {
		r.Dead++
		p := bySeq[l.Sequence]
		if p == nil {
			for _, u := range unsure { // it died before it was started once
				if u.Subject == l.Subject && sha256.Sum256(l.Data) == u.Sum {
					p = u
				}
			}
		}
		if p == nil {
			r.wrong(Unexpected, "dead letter %d of sequence %d on %s, which nobody published", l.StoredSequence, l.Sequence, l.Subject)
			continue
		}
		letters[p] = append(letters[p], l)
		if sha256.Sum256(l.Data) != p.Sum {
			r.wrong(Damaged, "%s: the body of dead letter %d is not what was published", p, l.StoredSequence)
		}
		if l.Subject != p.Subject {
			r.wrong(Damaged, "%s: the subject of dead letter %d is %q", p, l.StoredSequence, l.Subject)
		}
	}
	all := slices.Clone(pubs)
	for p := range appeared {
		all = append(all, p)
	}
	for _, p := range all {
		w.judge(r, e, p, runs[p], letters[p], faults)
	}
	r.Bound, r.Arithmetic = w.bound(faults)
	switch {
	case e.Unbounded:
		r.Arithmetic = "no bound"
	case e.Bound != nil:
		r.Bound, r.Arithmetic = *e.Bound, strconv.Itoa(*e.Bound)
		fallthrough
	default:
		if r.Duplicates > r.Bound {
			r.wrong(Duplicate, "%d > %s", r.Duplicates, r.Arithmetic)
		}
	}
}

func (p *Pub) String() string {
	return fmt.Sprintf("%s (sequence %d on %.40q, %s)", p.Script.ID, p.Seq, p.Subject, orText(p.Script.Do, "ok"))
}

// doomed tells whether the message can never be handled.
func (p *Pub) doomed() bool {
	return p.Script.Do != "" && p.Script.Do != "ok" && p.Script.Do != "daemon" && p.Script.Until == 0 && p.Script.On == "" && !p.Script.Once
}

// longestElection is how long a cluster may be without a leader for what relay remembers of a failure.
const longestElection = 10 * time.Second

// hit tells whether a message was in flight at the fault, which costs a start then: it ran, within a second, or it had
// failed and did not come again before. Its attempt may have waited for its record to be stored.
func (f *Fault) hit(runs []*ledger.Run) bool {
	for i, run := range runs {
		switch {
		case !run.Start.Before(f.At.Add(time.Second)):
		case run.End.IsZero(), run.End.After(f.At.Add(-time.Second)):
			return true
		case !run.OK && run.End.After(f.At.Add(-longestElection)) && (i == len(runs)-1 || runs[i+1].Start.After(f.At)):
			return true
		}
	}
	return false
}

// second counts the other deliveries of a message that ran beside a fault: an earlier fault had left them, as they began with an attempt that had
// run before. The fault costs a start for each.
func (f *Fault) second(runs []*ledger.Run) (n int) {
	most := 0
	for _, run := range runs {
		if run.Attempt > 0 && run.Attempt <= most && run.Start.Sub(f.At).Abs() < 500*time.Millisecond {
			n++
		}
		most = max(most, run.Attempt)
	}
	return n
}

// longestFault is how long a fault may go on after it began.
const longestFault = 30 * time.Second

// met tells whether a fault may have cost a message a start: whether it began before the last start, and was not over before the
// first. It is generous to messages that a fault did not touch, and never unjust.
func (f *Fault) met(runs []*ledger.Run) bool {
	return f.At.Before(runs[len(runs)-1].Start) && f.At.After(runs[0].Start.Add(-longestFault))
}

// starts is how often a message starts that is handled in the end and meets no fault; 0 is for those of which its script alone
// does not say it.
func (p *Pub) starts() int {
	switch s := p.Script; {
	case s.On != "" || s.Once || p.Raw:
		return 0
	case s.Do == "" || s.Do == "ok":
		return 1
	case s.Do == "fail" && s.Until > 0:
		return s.Until + 1
	}
	return 0
}

// judgeStarts holds a message to the bound of starts of docs/reliability.md. Anew is how many more there may be, whatever its faults met.
func (r *Report) judgeStarts(e Expect, p *Pub, runs []*ledger.Run, faults []*Fault, anew int) {
	want := p.starts()
	if want == 0 || e.Moods {
		want = e.MaxAttempts
	}
	if len(runs) == 0 || e.Free != nil && e.Free(p) {
		return
	}
	most := want + e.ExtraStarts + anew
	handledBefore := slices.ContainsFunc(runs[:len(runs)-1], func(run *ledger.Run) bool { return run.OK })
	for _, f := range faults {
		if !f.met(runs) {
			continue
		}
		most += 1 + f.second(runs)
		// It begins anew when its record is gone with its ack, or when it was parked and not acknowledged, and its parked copy is through by the time it
		// comes again.
		if f.Acks || handledBefore && f.hit(runs) {
			most += want
		}
	}
	if len(runs) > most {
		r.wrong(Attempts, "%s: %d starts, want %d, and %d for faults at most: %s", p, len(runs), want, most-want, describe(runs))
	}
}

// judge looks at one message.
func (w *World) judge(r *Report, e Expect, p *Pub, runs []*ledger.Run, letters []Letter, faults []*Fault) {
	ok, bad := 0, 0
	for _, run := range runs {
		if run.OK {
			ok++
		} else {
			bad++
		}
	}
	if ok > 0 {
		r.Handled++
		r.Duplicates += ok - 1
	}
	if ok == 0 && len(letters) == 0 && !e.NoRest && (e.GoneOK == nil || !e.GoneOK(p)) {
		r.wrong(Lost, "%s: %s", p, describe(runs))
	}
	replays := make(map[int]int)
	for _, l := range letters {
		replays[l.Replay]++
	}
	for replay, n := range replays {
		if n > 1 {
			r.wrong(DeadTwice, "%s: %d dead letters for replay %d", p, n, replay)
		}
	}
	if len(letters) > 0 && bad == 0 {
		r.wrong(Bystander, "%s: %s, %s after %d attempts by its dead letter: %s", p, letters[0].Reason, letters[0].LastError, letters[0].Attempts, describe(runs))
	}
	if len(letters) > 0 && ok > 0 && len(faults) == 0 && !e.Replayed {
		r.wrong(Both, "%s: %s", p, describe(runs))
	}
	if p.doomed() && ok == 0 && len(letters) == 0 && !e.NoRest {
		r.wrong(Misplaced, "%s: %s", p, describe(runs))
	}
	want := e.MaxAttempts
	switch {
	case !p.doomed() || e.Replayed || e.ExtraStarts < 0 || e.Moods || e.Free != nil && e.Free(p):
		want = 0
	case p.Script.Do == "dead":
		want = 1
	case p.Script.Do != "fail":
		want = 0
	}
	if want > 0 {
		if r.Most = max(r.Most, len(runs)); len(runs) > want {
			r.Beyond++
		}
	}
	extra := e.ExtraStarts
	for _, f := range faults {
		if f.hit(runs) {
			extra++
			if f.Acks {
				// Its last ack may be forgotten, and its record is gone by then: it begins anew.
				extra += e.MaxAttempts
			}
		}
	}
	anew := 0
	if w.divided && len(runs) > 0 && slices.ContainsFunc(faults, func(f *Fault) bool { return f.At.After(p.At) && f.At.Before(runs[len(runs)-1].Start) }) {
		// A kill between the hand-over of a message to the newest generation and its ack in the former one: the message is there twice, and each copy has
		// all its attempts.
		anew = e.MaxAttempts
	}
	extra += anew
	gone := e.GoneOK != nil && e.GoneOK(p) // before it had all its attempts
	if want > 0 && !e.NoRest && (len(runs) < want && !gone || len(runs) > want+extra) {
		r.wrong(Attempts, "%s: %d starts, want %d (and at most %d for faults): %s", p, len(runs), want, extra, describe(runs))
	}
	if e.Each || e.Moods {
		r.judgeStarts(e, p, runs, faults, anew)
	}
	if want > 0 && len(letters) == 1 && len(faults) == 0 && letters[0].Attempts != want {
		r.wrong(Attempts, "%s: the dead letter says %d attempts, there were %d", p, letters[0].Attempts, want)
	}
	if e.Delay > 0 {
		for i := 1; i < len(runs); i++ {
			if prev := runs[i-1]; !prev.End.IsZero() && !prev.OK && runs[i].Start.Sub(prev.End) < e.Delay-50*time.Millisecond {
				r.wrong(Early, "%s: attempt %d came %v after the last failure, not %v", p, runs[i].Attempt, runs[i].Start.Sub(prev.End), e.Delay)
			}
		}
	}
}

func describe(runs []*ledger.Run) string {
	if len(runs) == 0 {
		return "never started"
	}
	var parts []string
	for _, run := range runs {
		how := "cut"
		if !run.End.IsZero() {
			how = "fail after " + run.End.Sub(run.Start).Round(time.Millisecond).String()
			if run.OK {
				how = "ok after " + run.End.Sub(run.Start).Round(time.Millisecond).String()
			}
		}
		parts = append(parts, fmt.Sprintf("%s attempt %d on %s: %s", run.Start.Format("05.000"), run.Attempt, run.Instance, how))
	}
	return strings.Join(parts, "; ")
}

// bound is how many duplicates the faults explain: what was in flight at each, and the handlers that ended well in the
// last 150 ms of each lone nats-server.
func (w *World) bound(faults []*Fault) (int, string) {
	total := 0
	var parts []string
	for _, f := range faults {
		total += f.InFlight
		part := strconv.Itoa(f.InFlight)
		if f.Acks {
			n := 0
			for _, run := range w.ledgers.Runs {
				if run.OK && run.End.After(f.At.Add(-lastMoments)) && run.End.Before(f.At.Add(50*time.Millisecond)) {
					n++
				}
			}
			total += n
			part += fmt.Sprintf("+%d acks", n)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return 0, "0 (no fault)"
	}
	if len(parts) > 12 {
		parts = append(parts[:12], "…")
	}
	return total, fmt.Sprintf("%d (%d faults, in flight at each: %s)", total, len(faults), strings.Join(parts, ", "))
}
