package reply

import (
	"strings"
	"testing"
)

// A result is bounded, the last one counts, what its giver keeps is its own, and nothing comes in after the attempt.
func TestResult(t *testing.T) {
	t.Parallel()
	var none *Result
	none.Set([]byte("x"))
	none.Close()
	if data, cut := none.Data(); none.Most() != 0 || data != nil || cut || !none.SetHeader("A", "b") || none.Header() != nil {
		t.Error("a result for nobody has something")
	}
	if New(-1).Most() != 0 {
		t.Error("less than nothing is kept")
	}
	r := New(4)
	kept := []byte("long")
	r.Set(append(kept, "er"...))
	if data, cut := r.Data(); string(data) != "long" || !cut {
		t.Errorf("got %q, cut %v", data, cut)
	}
	r.Set(kept)
	kept[0] = 'x'
	r.Close()
	r.Set([]byte("late"))
	if data, cut := r.Data(); string(data) != "long" || cut || !r.SetHeader("Late", "1") || len(r.Header()) > 0 {
		t.Errorf("got %q, cut %v, %v", data, cut, r.Header())
	}
}

func TestResult_SetHeader(t *testing.T) {
	t.Parallel()
	r := New(4)
	for _, bad := range [][2]string{
		{"", "x"}, {"A B", "x"}, {"A:", "x"}, {"A\r\n", "x"}, {"Ä", "x"}, {"relay-Id", "x"}, {"NATS-Msg-Id", "x"},
		{"A", "x\r\nB: y"}, {"A", "x\x00"}, {"A", strings.Repeat("x", MaxHeaderBytes)},
	} {
		if r.SetHeader(bad[0], bad[1]) {
			t.Errorf("taken: %q: %.20q", bad[0], bad[1])
		}
	}
	for range MaxHeaders + 10 { // the same one takes no more room
		if !r.SetHeader("Content-Type", strings.Repeat("x", MaxHeaderBytes-len("Content-Type"))) {
			t.Fatal("refused")
		}
	}
	r.SetHeader("Content-Type", "text/plain")
	for i := range MaxHeaders - 1 {
		if !r.SetHeader("A"+strings.Repeat("a", i), "v") {
			t.Fatalf("header %d refused", i)
		}
	}
	if r.SetHeader("One-More", "v") {
		t.Error("there is no bound")
	}
	if h := r.Header(); h.Get("Content-Type") != "text/plain" || len(h) != MaxHeaders {
		t.Errorf("%v", h)
	}
}
