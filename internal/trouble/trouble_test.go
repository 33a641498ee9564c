package trouble

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What does not work is logged when it begins, once a minute while it lasts, and when it is over. It is reported when it begins and when it is
// over only.
func TestList_saysWhatDoesNotWork(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var reported []string
	l := NewList(slog.New(slog.NewTextHandler(&log, nil)), func(what string, err error) {
		if err != nil {
			what += ": " + err.Error()
		}
		reported = append(reported, what)
	})
	lines := func() int { return strings.Count(log.String(), "\n") }
	at := time.Now()
	for i := range 120 { // two minutes
		l.Note("bucket A", context.DeadlineExceeded, at.Add(time.Duration(i)*time.Second))
	}
	l.Note("bucket B", errors.New("bucket B is not permitted"), at.Add(2*time.Minute))
	if lines() != 3 || strings.Count(log.String(), "retrying: bucket A") != 2 {
		t.Errorf("log:\n%s", &log)
	}
	all := l.All()
	if len(all) != 2 || !all[0].Since.Equal(at) || !all[0].Passes() || all[1].Passes() {
		t.Errorf("troubles: %v", all)
	}
	text := l.Err().Error()
	if !strings.Contains(text, "bucket A: context deadline exceeded (since ") || !strings.Contains(text, "bucket B is not permitted (since ") || strings.Contains(text, "bucket B: bucket B") {
		t.Errorf("err: %s", text)
	}
	if !errors.Is(l.Err(), context.DeadlineExceeded) {
		t.Error("the reason is not wrapped")
	}
	l.Mended("bucket A", at.Add(3*time.Minute))
	l.Mended("bucket A", at.Add(3*time.Minute))
	l.Mended("bucket C", at.Add(3*time.Minute))
	if lines() != 4 || !strings.Contains(log.String(), `working again: bucket A" after=3m0s`) || len(l.All()) != 1 {
		t.Errorf("log:\n%s", &log)
	}
	if want := []string{"bucket A: context deadline exceeded", "bucket B: bucket B is not permitted", "bucket A"}; !equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if all[0].Err == nil {
		t.Error("a trouble that somebody holds changed")
	}
	l.Mended("bucket B", at)
	if l.Err() != nil {
		t.Errorf("nothing is wrong: %v", l.Err())
	}
}

func equal(a, b []string) bool { return strings.Join(a, "|") == strings.Join(b, "|") }

func TestThrottle_oneLineAMinute(t *testing.T) {
	t.Parallel()
	var s Throttle
	at := time.Now()
	for i, c := range []struct {
		after time.Duration
		kept  int
		may   bool
	}{{0, 0, true}, {time.Second, 0, false}, {59 * time.Second, 0, false}, {time.Minute, 2, true}, {time.Minute + time.Second, 0, false}, {5 * time.Minute, 1, true}} {
		if kept, may := s.Allow(at.Add(c.after)); kept != c.kept || may != c.may {
			t.Errorf("line %d: %d kept back, may %v; want %d, %v", i, kept, may, c.kept, c.may)
		}
	}
}

// What nobody sees the end of is over when it was not noted for a while, and the rest stays.
func TestList_whatIsNotNotedAgainIsOver(t *testing.T) {
	t.Parallel()
	var reported []string
	l := NewList(slog.New(slog.DiscardHandler), func(what string, err error) {
		if err == nil {
			reported = append(reported, what)
		}
	})
	at, why := time.Now(), errors.New("why")
	l.Note("bucket A", why, at)
	l.NoteFor(time.Minute, "newer messages", why, at)
	l.NoteFor(time.Minute, "newer messages", why, at.Add(40*time.Second))
	l.Expire(at.Add(100 * time.Second))
	if len(l.All()) != 2 || len(reported) > 0 {
		t.Errorf("too early: %v, %q", l.All(), reported)
	}
	l.Expire(at.Add(101 * time.Second))
	if all := l.All(); len(all) != 1 || all[0].What != "bucket A" || !equal(reported, []string{"newer messages"}) {
		t.Errorf("%v, %q", all, reported)
	}
}
