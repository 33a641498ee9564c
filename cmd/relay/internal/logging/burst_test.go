package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// buffer is a log that several goroutines write.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// take empties it.
func (b *buffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.Reset()
	return b.String()
}

// records reads a JSON log, and empties it.
func records(t *testing.T, b *buffer) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(b.take()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

// A dependency that was down wrote a line for every failure: 18 MB in half a minute.
func TestLog_stormIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b buffer
		l, flush, err := New(&b, Config{Level: "info", Format: "json", Burst: 3})
		if err != nil {
			t.Fatal(err)
		}
		storm := func(n int) {
			for i := range n {
				l.Warn("attempt failed", "route", "billing", "attempt", i)
			}
		}
		storm(50)
		l.Warn("attempt failed", "route", "shipping")               // another route
		l.Error("attempt failed", "route", "billing")               // another level
		l.With("route", "audit").Warn("attempt failed", "n", 1)     // a route of the logger
		l.Warn("attempt failed", "route", "billing", "reason", "x") // another reason
		if said := records(t, &b); len(said) != 3+4 {
			t.Fatalf("%d lines: %v", len(said), said)
		}
		time.Sleep(period)
		synctest.Wait()
		said := records(t, &b)
		if len(said) != 1 || said[0]["count"] != 47.0 || said[0]["route"] != "billing" || said[0]["message"] != "attempt failed" ||
			said[0]["level"] != "WARN" || said[0]["within"] != "10s" {
			t.Fatalf("after the period: %v", said)
		}
		storm(5) // a new period
		flush()
		if said := records(t, &b); len(said) != 4 || said[3]["count"] != 2.0 {
			t.Fatalf("at the end: %v", said)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if said := records(t, &b); len(said) > 0 {
			t.Fatalf("nothing was left out, and yet: %v", said)
		}
	})
}

func TestLog_burstHasItsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b buffer
		l, flush, err := New(&b, Config{Level: "debug", Format: "json", Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			l.Debug("handled")
		}
		if n := len(records(t, &b)); n != 10 {
			t.Errorf("%d of 10 debug lines", n)
		}
		for i := range 10 * maxKinds { // kinds that a stranger made up
			l.Warn(fmt.Sprint(i))
		}
		if n := len(records(t, &b)); n > maxKinds+1 {
			t.Errorf("%d lines", n)
		}
		flush()
		b.take()
		unlimited, flush, err := New(&b, Config{Level: "info", Format: "json"})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			unlimited.Warn("x")
		}
		flush()
		if n := len(records(t, &b)); n != 100 {
			t.Errorf("%d of 100 lines without a limit", n)
		}
	})
}

// Lines of 22 KB: a publisher chose the subject, the handler the error.
func TestLog_longTextsAreCut(t *testing.T) {
	long := strings.Repeat("é", 11_000)
	for _, format := range []string{"json", "text"} {
		var b buffer
		l, flush, err := New(&b, Config{Level: "info", Format: format, Burst: 20})
		if err != nil {
			t.Fatal(err)
		}
		l.With("key", long).Warn(long, "subject", long, "error", errors.New(long), "list", []string{long}, long, "x")
		flush()
		if n := b.Len(); n > 3*maxName+4*maxText {
			t.Errorf("%s: a line of %d bytes", format, n)
		}
		if n := strings.Count(b.String(), "… (22000 bytes)"); n != 5 {
			t.Errorf("%s: %d of 5 say how long they were: %s", format, n, b.String())
		}
	}
}

func TestLog_shortValuesStayWhatTheyAre(t *testing.T) {
	var b buffer
	l, flush, err := New(&b, Config{Level: "info", Format: "json", Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	l.Info("made stream", "subjects", []string{"a", "b"}, "n", 1, "took", time.Second)
	flush()
	if r := records(t, &b)[0]; fmt.Sprint(r["subjects"]) != "[a b]" || r["n"] != 1.0 || r["took"] != "1s" {
		t.Error(r)
	}
}
