package unstored

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Each message is tried when its time has come, exactly once each time that it is added, and none is kept after the end.
func TestList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var l List
		now := time.Unix(0, 0)
		added, tried := 0, 0
		wait := map[int]time.Time{}
		add := func() bool {
			n, at := added, now.Add(time.Duration(rapid.IntRange(-1, 5).Draw(t, "after"))*time.Second)
			if !l.Add(at, errors.New("full"), func() {
				tried++
				if due, ok := wait[n]; !ok || due.After(now) {
					t.Errorf("message %d is tried at %v, and was due at %v (%v)", n, now, due, ok)
				}
				delete(wait, n)
			}) {
				return false
			}
			added++
			wait[n] = at
			return true
		}
		for range rapid.IntRange(0, 50).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "add") {
				add()
				continue
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "later")) * time.Second)
			for _, try := range l.Take(now) {
				try()
			}
			for n, at := range wait {
				if !at.After(now) {
					t.Errorf("message %d was due at %v and is not tried at %v", n, at, now)
				}
			}
		}
		if l.Len() != added-tried {
			t.Errorf("%d are left of %d, %d were tried", l.Len(), added, tried)
		}
		now = now.Add(time.Hour)
		for _, try := range l.End() {
			try()
		}
		if tried != added || l.Len() != 0 || add() {
			t.Errorf("at the end %d of %d were tried", tried, added)
		}
	})
}

// The log says once a minute how many there are, and nothing while there are none.
func TestList_Say(t *testing.T) {
	t.Parallel()
	var l List
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	now := time.Unix(1_000_000, 0)
	l.Say(now, log)
	l.Add(now, errors.New("full"), func() {})
	l.Parked(errors.New("no bucket"))
	for range 100 {
		l.Say(now, log)
	}
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "held=1 parked=1 error=\"no bucket\"") {
		t.Errorf("said %s", text)
	}
	said.Reset()
	l.Say(now.Add(sayEvery), log)
	if text := said.String(); !strings.Contains(text, "held=1 parked=0") {
		t.Errorf("a minute later: %s", text)
	}
}
