package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/lmittmann/tint"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/plain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNew_formats(t *testing.T) {
	for format, want := range map[string]string{"json": `"msg":"hello"`, "auto": `"msg":"hello"`, "text": "INF hello"} {
		var b bytes.Buffer
		l, _, err := New(&b, Config{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		l.Debug("not this")
		l.Info("hello", "n", 1)
		if s := b.String(); !strings.Contains(s, want) || strings.Count(s, "\n") != 1 {
			t.Errorf("%s: %q", format, s)
		}
	}
}

func TestNew_refuses(t *testing.T) {
	for _, c := range [][3]string{{"loud", "auto", "log.level"}, {"", "auto", "log.level"}, {"info", "xml", "log.format"}} {
		if _, _, err := New(io.Discard, Config{Level: c[0], Format: c[1]}); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q: %v", c, err)
		}
	}
	for _, level := range []string{"debug", "info", "warn", "error"} {
		if _, _, err := New(io.Discard, Config{Level: level, Format: "auto"}); err != nil {
			t.Error(err)
		}
	}
}

// A pipe is no terminal, also behind a Writer.
func TestNew_autoOnAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	q := NewWriter(w)
	l, _, err := New(q, Config{Level: "info", Format: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	l.Info("hello")
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := r.Read(buf)
	if err != nil || !json.Valid(buf[:n]) {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

type stranger string

func (s stranger) LogValue() slog.Value { return slog.StringValue(string(s)) }
func (s stranger) Error() string        { return string(s) }

type nilError struct{}

func (e *nilError) Error() string { return string(*(*[]byte)(nil)) }

// corpus is what may stand in a subject or an error text.
var corpus = []string{
	"line\nbreak", "\r\n", "\x1b[31mred", "spaced \x1b]0;title\x07", `\x1b[31m as text`, `\\x1b[31m`, "\x00", "\x7f", "\u009b31m", "\u202e", "\u2028",
	"\xff\xfe", "\t", `"quoted"`, `back\slash`, "\U000e0001", "", "plain", "ünïcödé",
}

func log(l *slog.Logger, s string) {
	l.Info(s, s, s, "any", []byte(s), "error", errors.New(s), "valuer", stranger(s), "group", slog.GroupValue(slog.String(s, s)))
	l.With(s, s, "valuer", stranger(s)).WithGroup("g"+s).Warn("m", "list", []string{s}, tint.Err(stranger(s)))
}

func check(t *testing.T, out []byte, colour bool) {
	t.Helper()
	if colour {
		// What tint itself writes: \x1b[ digits and ; then m.
		for _, c := range []string{"\x1b[0m", "\x1b[2m", "\x1b[22m", "\x1b[91m", "\x1b[92m", "\x1b[93m", "\x1b[2;91m", "\x1b[22;2;91m"} {
			out = bytes.ReplaceAll(out, []byte(c), nil)
		}
	}
	if plain.Lines(string(out)) != string(out) {
		t.Fatalf("what may not be shown: %q", out)
	}
	if n := bytes.Count(out, []byte("\n")); n != 2 {
		t.Fatalf("%d lines of 2 records: %q", n, out)
	}
}

func TestLog_oneRecordIsOneLine(t *testing.T) {
	for _, s := range corpus {
		for _, format := range []string{"json", "text"} {
			var b bytes.Buffer
			l, _, err := New(&b, Config{Level: "info", Format: format})
			if err != nil {
				t.Fatal(err)
			}
			log(l, s)
			check(t, b.Bytes(), false)
		}
		var b bytes.Buffer
		log(slog.New(escaper{tint.NewTextHandler(&b, nil)}), s)
		check(t, b.Bytes(), true)
	}
}

func TestLog_valueThatPanics(t *testing.T) {
	var b bytes.Buffer
	l, _, err := New(&b, Config{Level: "info", Format: "text"})
	if err != nil {
		t.Fatal(err)
	}
	l.Info("m", "error", (*nilError)(nil))
	if !strings.Contains(b.String(), "nil") {
		t.Fatal(b.String())
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range corpus {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b bytes.Buffer
		log(slog.New(escaper{tint.NewTextHandler(&b, nil)}), s)
		check(t, b.Bytes(), true)
		var plain bytes.Buffer
		log(slog.New(escaper{tint.NewTextHandler(&plain, &tint.Options{NoColor: true})}), s)
		check(t, plain.Bytes(), false)
	})
}

func TestTerminal_noColor(t *testing.T) {
	// The colours of tint are decided by two facts; a terminal is not to be had in a test, the variable is.
	t.Setenv("NO_COLOR", "1")
	var b bytes.Buffer
	l, _, err := New(&b, Config{Level: "info", Format: "text"})
	if err != nil {
		t.Fatal(err)
	}
	l.Error("m", "k", "v")
	if bytes.ContainsRune(b.Bytes(), '\x1b') {
		t.Fatalf("%q", b.String())
	}
}

func TestWriter_passesEverythingOnInOrder(t *testing.T) {
	var b bytes.Buffer
	q := NewWriter(&b)
	var want strings.Builder
	p := []byte("0\n")
	for i := range 1000 {
		p[0] = byte('0' + i%10)
		want.Write(p)
		q.Write(p) // the same slice each time, as slog does
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if b.String() != want.String() || q.Dropped() != 0 {
		t.Fatalf("%d bytes, %d dropped", b.Len(), q.Dropped())
	}
	q.Write(p)
	if q.Dropped() != 1 {
		t.Fatal("taken after Close")
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestWriter_blockedSinkBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		q := NewWriter(writerFunc(func(p []byte) (int, error) { <-free; return len(p), nil }))
		record := make([]byte, 1<<10)
		const records = 2 * maxQueued / (1 << 10)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range records / 4 {
					q.Write(record)
				}
			})
		}
		wg.Wait() // a Write that waits for the sink would be a deadlock here
		if n := q.Dropped(); n != records/2 {
			t.Errorf("%d dropped of %d, want half", n, records)
		}
		if err := q.Close(); err == nil { // the bubble's clock: the second is free
			t.Error("closed without an error")
		}
		close(free)
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWriter_sinkThatFails(t *testing.T) {
	q := NewWriter(writerFunc(func(p []byte) (int, error) { return 0, errors.New("no space left on device") }))
	for range 3 {
		if n, err := q.Write([]byte("x")); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if q.Dropped() != 3 {
		t.Fatalf("%d dropped", q.Dropped())
	}
}
