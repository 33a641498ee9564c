package schedule

import (
	"context"
	"slices"
	"time"
)

// Instances of a rolling deploy differ about when a schedule runs. One definition counts, that of [Record.Timing], and the instances that have it
// publish. An instance whose definition is new to the record starts a generation with it. One whose definition counted before has the older file: it
// leaves the record alone, and asks in it whether an instance with the newer definition lives. If none answers, it was a rollback, and the
// older definition starts a generation, too. Nothing is written while all agree.

// mostFormer bounds [Record.Former]. An instance with a definition that is older still counts as new: it takes that many changes while it runs.
const mostFormer = 16

// definition is what this instance knows of a definition of its own and another one that counts.
type definition struct {
	counted bool // this one counted while this instance ran; what an earlier version of relay wrote since does not say so
	warned  bool
	doubt   Doubt
	since   time.Time // when doubt was first seen
}

// differs does what is to be done when another definition counts.
func (r *Runner) differs(ctx context.Context, records *Records, s Schedule, rec Record, revision uint64, known *definition) (time.Time, error) {
	now := r.now()
	from := now
	if rec.Claim == nil && !rec.Next.After(now) && now.Sub(rec.Next) < look {
		from = rec.Next.Add(-1) // that run is due now, and nobody else can claim it any more
	}
	if rec.Timing != "" && (known.counted || slices.Contains(rec.Former, s.Timing())) {
		if !known.warned {
			known.warned = true
			r.cfg.Logger.Warn("another instance runs a schedule by a newer definition: this instance does not run the schedule until no such instance answers; give all instances the same file",
				"schedule", s.Name, "this", s.Timing(), "newer", rec.Timing, "generation", rec.Generation)
		}
		if d := rec.Doubt; d != nil {
			if d.By != known.doubt.By || !d.At.Equal(known.doubt.At) {
				known.doubt, known.since = *d, time.Now()
			}
			pause := r.silence
			if d.Answered {
				pause = r.askAgain
			}
			if left := time.Until(known.since.Add(pause)); left > 0 {
				return now.Add(left), nil
			}
		}
		if rec.Doubt == nil || rec.Doubt.Answered {
			rec.Doubt = &Doubt{By: r.cfg.Instance, At: now.UTC()}
			_, err := records.put(ctx, s.Name, rec, revision)
			return now.Add(look), err
		}
		if rec.Doubt.At.Before(from) {
			from = rec.Doubt.At // nobody published since: what was due is late
		}
	}
	before := rec.Timing
	if err := rec.begin(s, from); err != nil {
		return now, err
	}
	if _, err := records.put(ctx, s.Name, rec, revision); err != nil {
		return now, err
	}
	if before != "" {
		r.cfg.Logger.Info("a schedule runs by a changed definition from now on", "schedule", s.Name, "before", before, "now", rec.Timing, "generation", rec.Generation)
	}
	return now, nil
}

// begin starts a generation with the definition of s, whose first run is after from.
func (rec *Record) begin(s Schedule, from time.Time) (err error) {
	if rec.Next, err = s.Next(from); err != nil {
		return err
	}
	rec.Former = slices.DeleteFunc(append(rec.Former, rec.Timing), func(t string) bool { return t == "" || t == s.Timing() })
	rec.Former = rec.Former[max(0, len(rec.Former)-mostFormer):]
	rec.Timing, rec.Claim, rec.Doubt = s.Timing(), nil, nil
	rec.Generation++
	return nil
}
