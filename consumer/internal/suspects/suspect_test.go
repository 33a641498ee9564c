package suspects

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/retry"
)

// records are those of a durable, as another process sees them each time that it is called.
func records(t *testing.T, l *Lives) func() *retry.Records {
	t.Helper()
	return func() *retry.Records {
		b, err := retry.OpenBucket(t.Context(), l.cfg.JS, "RELAY_ATTEMPTS", 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b.Records("ORDERS", "billing", time.Time{})
	}
}

func TestLives_judge(t *testing.T) {
	t.Parallel()
	list := lives(t, 3)
	here, there, dead := list[0], list[1].ID(), list[2].ID()
	list[2].cfg.Conn.Close() // all that the others see of a death
	now := time.Now()
	failed := retry.Record{Attempts: 1, FirstFailure: now, LastFailure: now, Deliveries: 1}
	kept := failed
	kept.Kept = true
	for _, tt := range []struct {
		name    string
		rec     retry.Record
		came    uint64
		asked   time.Time
		suspect bool
		charged bool
		err     error
	}{
		{"it never failed, and there was a death", retry.Record{}, 2, now, true, false, nil},
		{"it failed the time before", failed, 2, now, false, false, nil},
		{"it was away once without a word", failed, 3, now, true, false, nil},
		{"it waited in the process that died", kept, 2, now, true, false, nil},
		{"it ran alone in one that died", retry.Record{Solo: dead}, 2, now, true, true, nil},
		{"it runs alone in one that lives", retry.Record{Solo: there}, 2, now, false, false, ErrThere},
		{"it has run there for too long", retry.Record{Solo: there}, 2, now.Add(-dying - time.Second), true, false, nil},
		{"it ran alone here", retry.Record{Solo: here.ID()}, 2, now, true, false, nil},
		{"it ended a process before", retry.Record{Crashes: 1}, 9, now, true, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec, charged, err := here.Judge(t.Context(), tt.rec, tt.came, tt.asked)
			if !errors.Is(err, tt.err) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
			if err == nil && (rec.Suspect != tt.suspect || charged != tt.charged || rec.Solo != "") {
				t.Errorf("%+v, charged %v", rec, charged)
			}
			if crashes := rec.Crashes - tt.rec.Crashes; charged != (crashes == 1) || charged && (rec.FirstFailure.IsZero() || rec.LastError == "") {
				t.Errorf("%+v, charged %v", rec, charged)
			}
		})
	}
}

// What is written while a suspect runs names the process, and is gone when it has returned.
func TestSuspect_isAccusedWhileItRuns(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	read, solo := records(t, l), NewSolo()
	never := func() bool { return false }
	failed := func(err error) { t.Error(err) }
	for _, rec := range []retry.Record{{}, {Attempts: 2, FirstFailure: time.Now(), LastFailure: time.Now(), Solo: "of another process"}} {
		s := New(rec, read(), uint64(7+rec.Attempts), 2)
		s.Acquit(t.Context(), l, solo, never, failed) // nothing was written
		if err := s.Accuse(t.Context(), l, solo); err != nil {
			t.Fatal(err)
		}
		if got, err := read().Get(t.Context(), s.sequence, 3); err != nil || got.Solo != l.ID() || solo.accused.Load() != 1 {
			t.Errorf("while it runs: %+v, %v, %d accused", got, err, solo.accused.Load())
		}
		s.Acquit(t.Context(), l, solo, never, failed)
		s.Acquit(t.Context(), l, solo, never, failed)
		if got, err := read().Get(t.Context(), s.sequence, 3); err != nil || got.Solo != "" || got.Attempts != rec.Attempts || solo.accused.Load() != 0 {
			t.Errorf("afterwards: %+v, %v, %d accused", got, err, solo.accused.Load())
		}
	}
}

// At the end of a drain it is still written down that nothing was ended.
func TestSuspect_isAcquittedAtTheEndOfADrain(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	read, solo := records(t, l), NewSolo()
	s := New(retry.Record{}, read(), 1, 2)
	if err := s.Accuse(t.Context(), l, solo); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s.Acquit(over, l, solo, func() bool { return false }, func(err error) { t.Error(err) })
	if got, err := read().Get(t.Context(), 1, 3); err != nil || got.Solo != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Another instance has the message when the record is not the one that was read. Then the handler must not start, and nothing is accused.
func TestSuspect_isElsewhere(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	read, solo := records(t, l), NewSolo()
	now := time.Now()
	if err := read().Put(t.Context(), 1, 2, retry.Record{Attempts: 1, FirstFailure: now, LastFailure: now}); err != nil {
		t.Fatal(err)
	}
	s := New(retry.Record{}, read(), 1, 2)
	if err := s.Accuse(t.Context(), l, solo); !errors.Is(err, retry.ErrElsewhere) || solo.accused.Load() != 0 {
		t.Errorf("got %v, %d accused", err, solo.accused.Load())
	}
}

// While the bucket does not answer, it is tried again until another instance may have the message.
func TestSuspect_acquitTriesAgain(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	read, solo := records(t, l), NewSolo()
	s := New(retry.Record{}, read(), 1, 2)
	if err := s.Accuse(t.Context(), l, solo); err != nil {
		t.Fatal(err)
	}
	if err := l.cfg.JS.DeleteKeyValue(t.Context(), "RELAY_ATTEMPTS"); err != nil {
		t.Fatal(err)
	}
	failures := 0
	s.Acquit(t.Context(), l, solo, func() bool { return failures == 2 }, func(error) { failures++ })
	if failures != 2 || solo.accused.Load() != 0 {
		t.Errorf("%d failures, %d accused", failures, solo.accused.Load())
	}
}
