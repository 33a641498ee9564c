package generations

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/partition"
)

// A route is divided as it is wanted, once; those who look only make nothing, and take what others made.
func TestMaker_Divide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	divide := func(want Wanted, was *Route, how Dividing, generations ...int) *Route {
		t.Helper()
		r, err := w.maker.Divide(t.Context(), want, was, how)
		w.do(err)
		if len(r.Streams) != len(generations) {
			t.Fatalf("%d generations, want %v", len(r.Streams), generations)
		}
		for i, s := range r.Streams {
			if s.Number != generations[i] {
				t.Errorf("generation %d, want %v", s.Number, generations)
			}
		}
		return r
	}
	found := wanted(4, Start{})
	found.Stream = ""
	found.Origin = func(context.Context) (string, error) { return "ORDERS", nil }
	divide(found, nil, CheckOnly)
	divide(found, nil, MakeWanted, 1)
	divide(found, nil, MakeWanted, 1)
	divide(wanted(3, Start{}), nil, CheckOnly, 1)
	divide(wanted(3, Start{}), nil, TakeOthers, 1)
	was := divide(wanted(3, Start{}), nil, MakeWanted, 1, 2)
	divide(wanted(5, Start{}), was, TakeOthers, 1, 2)

	for i, p := range New(w.js, "billing", was.Streams[:1]).Parts() {
		if behind, err := w.maker.IsBehind(t.Context(), &p); !behind || err != nil {
			t.Errorf("part %d of the first generation is not behind: %v", i, err)
		}
	}
	for i, p := range was.Parts() {
		if behind, err := w.maker.IsBehind(t.Context(), &p); behind || err != nil {
			t.Errorf("part %d is behind, %v", i, err)
		}
	}

	lost := errors.New("no stream holds it")
	found.Origin = func(context.Context) (string, error) { return "", lost }
	if _, err := w.maker.Divide(t.Context(), found, was, MakeWanted); !errors.Is(err, lost) {
		t.Errorf("without a stream: %v", err)
	}
	for _, s := range was.Streams {
		w.do(w.js.DeleteStream(t.Context(), s.Name()))
	}
	divide(wanted(3, Start{}), was, TakeOthers, 1) // what is gone is made anew
}

// A first generation begins where the configuration says.
func TestStart_at(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		start Start
		want  partition.Start
		said  bool
	}{
		{Start{}, partition.Start{}, false},
		{Start{Policy: "all"}, partition.Start{Sequence: 1}, true},
		{Start{Policy: "new"}, partition.Start{Sequence: 8}, true},
		{Start{Policy: "seq", Seq: 5}, partition.Start{Sequence: 5}, true},
		{Start{Policy: "since", Since: noon}, partition.Start{Time: noon}, true},
	} {
		if got, said := c.start.at(7); got != c.want || said != c.said {
			t.Errorf("%+v: %v, %v", c.start, got, said)
		}
	}
}

// What the server still has, but does not list, is not made a second time.
func TestMaker_Divide_notListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	was, err := w.maker.Divide(t.Context(), wanted(2, Start{}), nil, MakeWanted)
	w.do(err)
	c := was.Newest().Info.Config
	c.Metadata = nil // so that it is not found
	_, err = w.js.UpdateStream(t.Context(), c)
	w.do(err)
	if _, err := w.maker.Divide(t.Context(), wanted(2, Start{}), was, MakeWanted); err == nil || !strings.Contains(err.Error(), "does not list it") {
		t.Errorf("%v", err)
	}
}
