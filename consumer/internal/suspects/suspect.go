package suspects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// dying is how long a process that ran a suspect may take to be gone: a stack overflow first fills a gigabyte, and then
	// writes what it did.
	dying = 30 * time.Second
	// lastTry bounds a try to acquit at the end of a drain.
	lastTry = 200 * time.Millisecond
)

// Judge completes the record of a message that comes again, at its nth delivery: whether it is a suspect, and whether it has ended a process. It is
// charged when it has ended one that was not known of before. Judge asks the server and the other processes. An error means that it must be asked
// again; asked is when it was asked first. A process that does not end has 30 s from then.
func (l *Lives) Judge(ctx context.Context, rec retry.Record, deliveries uint64, asked time.Time) (_ retry.Record, charged bool, err error) {
	switch {
	case rec.Solo != "":
		charged, err = l.Ended(ctx, rec.Solo)
		if errors.Is(err, ErrThere) && time.Since(asked) > dying {
			err = nil // nobody is charged
		}
		if err != nil {
			return rec, false, err
		}
		if charged {
			now := time.Now()
			rec.Crashes++
			rec.LastFailure, rec.LastError = now, fmt.Sprintf("the process ended while only this message ran in it (%d)", rec.Crashes)
			if rec.FirstFailure.IsZero() {
				rec.FirstFailure = now
			}
		}
		rec.Solo, rec.Suspect = "", true
	case rec.Crashes > 0 || rec.Suspect:
		rec.Suspect = true
	case !rec.Known() || rec.Deliveries > 0 && deliveries > rec.Deliveries+1, rec.Kept && deliveries > rec.Deliveries:
		rec.Suspect, err = l.Recent(ctx)
	}
	return rec, charged, err
}

// Suspect is a message that may have ended a process.
type Suspect struct {
	retry.Record // what is written when it runs alone

	records    *retry.Records
	sequence   uint64
	deliveries uint64

	mu      sync.Mutex // held while the server is asked
	accused bool       // its record says that it runs alone
	marked  uint64     // the revision that says so; 0 when it is not known
}

// New makes a suspect of a message with that record, which is written into records.
func New(rec retry.Record, records *retry.Records, sequence, deliveries uint64) *Suspect {
	rec.Solo = ""
	return &Suspect{Record: rec, records: records, sequence: sequence, deliveries: deliveries}
}

// Accuse writes down that the suspect is about to run and nothing else does. Without that it must not start. It asks the server, and blocks for at
// most 5 s.
func (s *Suspect) Accuse(ctx context.Context, l *Lives, solo *Solo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.Record
	rec.Solo = l.ID()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	s.marked, err = s.records.Mark(ctx, s.sequence, s.deliveries, rec)
	if !errors.Is(err, retry.ErrElsewhere) && !s.accused { // with another error it may be stored nevertheless
		s.accused = true
		solo.Accused()
	}
	return err
}

// Acquit takes the accusation back: the handler has returned, and the process lives. What was written since stays: the attempt, when
// the handler had been given up. It blocks until that is stored, until ctx is done, or until another instance may have the message. Failed is called
// for each try that did not succeed.
func (s *Suspect) Acquit(ctx context.Context, l *Lives, solo *Solo, fenced func() bool, failed func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.accused {
		return
	}
	s.accused = false
	defer solo.Acquitted()
	for {
		// The slow paths end with the drain, but who is interrupted by that has ended nothing.
		work, limit := ctx, patience
		if ctx.Err() != nil {
			work, limit = context.WithoutCancel(ctx), lastTry
		}
		err := s.acquit(work, limit, l.ID())
		if err == nil || fenced() || ctx.Err() != nil {
			return
		}
		failed(err)
		transient.Pause(ctx, time.Second)
	}
}

func (s *Suspect) acquit(ctx context.Context, limit time.Duration, life string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if s.marked == 0 {
		s.marked, err = s.records.Marked(ctx, s.sequence, s.deliveries, life)
	}
	if s.marked > 0 {
		err = s.records.Unmark(ctx, s.sequence, s.deliveries, s.Record, s.marked)
	}
	return err
}
