package deadletters

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// letters stores n dead letters and returns their numbers.
func letters(t *testing.T, s *natstest.Server, n int) (*dlq.Store, []uint64) {
	t.Helper()
	store, err := dlq.Open(t.Context(), s.JetStream(t), dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		e := dlq.Entry{Reason: dlq.Rejected, Data: []byte("x")}
		e.Route, e.Stream, e.Consumer, e.Subject, e.Sequence, e.Time, e.Attempts = "billing", "ORDERS", "billing", "orders.1.created", uint64(i+1), time.Unix(1, 0), 1
		if err := store.Put(t.Context(), "", e); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := store.Plan(t.Context(), dlq.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	var named []uint64
	for number := range plan.Numbers() {
		named = append(named, number)
	}
	return store, named
}

// Of a file without lines, import said "bufio.Scanner: token too long".
func TestImport_regressionLineThatIsTooLong(t *testing.T) {
	t.Parallel()
	l := <-readLines(t.Context(), io.LimitReader(zeros{}, maxLine+1))
	if want := "line 1: not a line of relay dlq export: longer than 192 MiB"; l.err == nil || l.err.Error() != want {
		t.Errorf("got %v", l.err)
	}
}

// What is no export said "cannot unmarshal array into Go value of type dlq.line". A mark of the byte order, as editors write it, is no reason to refuse one.
func TestImport_regressionSaysWhatIsNoExport(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"[1]":                     "line 1: not a line of relay dlq export: a line is a JSON object (got: array)",
		`{"route":7}`:             "line 1: not a line of relay dlq export: field route has another type (got: number)",
		"\x1f\x8b\x08\x00":        "line 1: not a line of relay dlq export: the input is compressed with gzip: unpack it first, as with zcat FILE | relay dlq import -",
		"\ufeff" + `{"format":9}`: "line 1: not a line of relay dlq export: format 9: this version of relay reads 1",
	} {
		if l := <-readLines(t.Context(), strings.NewReader(in)); l.err == nil || l.err.Error() != want {
			t.Errorf("%q: got %v, want %s", in, l.err, want)
		}
	}
}

// zeros is a file without lines.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// What somebody else had taken was said to be left, and so was what was removed at the moment of Ctrl-C.
func TestDiscard_regressionCountsWhatIsLeft(t *testing.T) {
	t.Parallel()
	store, named := letters(t, natstest.Start(t), 120)
	for _, n := range named[:40] {
		if err := store.Discard(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	record, seen := new(dlq.Job), 0
	done, err := discardEach(ctx, store, record, named, func() {
		if seen++; seen == 60 {
			interrupt()
		}
	})
	left, _, counted := store.Count(t.Context(), dlq.Filter{})
	if counted != nil {
		t.Fatal(counted)
	}
	if want := fmt.Sprintf("interrupted: %d dead letters are left", left); err == nil || err.Error() != want || record.Gone != 40 || done+left != 80 {
		t.Errorf("%d done, %d gone, %d left: %v", done, record.Gone, left, err)
	}
}

// A restart of the server ended a discard, with removals that were not counted.
func TestDiscard_regressionServerRestarts(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	store, named := letters(t, s, 600)
	some, ended := make(chan struct{}), make(chan error, 1)
	record, seen, done := new(dlq.Job), 0, 0
	go func() {
		var err error
		done, err = discardEach(t.Context(), store, record, named, func() {
			if seen++; seen == 50 {
				close(some)
			}
		})
		ended <- err
	}()
	<-some
	s.Restart()
	err := <-ended
	left, _, counted := store.Count(t.Context(), dlq.Filter{})
	if err != nil || counted != nil || done != 600 || record.Gone != 0 || left != 0 {
		t.Errorf("%d done, %d gone, %d left: %v, %v", done, record.Gone, left, err, counted)
	}
}
