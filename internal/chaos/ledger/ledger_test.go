package ledger

import (
	"strings"
	"testing"
)

// The padding of a body is not part of its script.
func TestScript_Body(t *testing.T) {
	t.Parallel()
	want := Script{ID: "m1", Do: "fail", Until: 2}
	for _, pad := range []string{"", "x", strings.Repeat("\n{", 1000)} {
		padded := want
		padded.Pad = pad
		if got := Parse(padded.Body()); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if n := len(padded.Body()) - len(want.Body()); pad != "" && n != len(pad)+1 {
			t.Errorf("%d bytes more, want %d", n, len(pad)+1)
		}
	}
	for _, body := range []string{"", "no script", `{"id":"a b"}`, `{"do":"fail"}`} {
		if got := Parse([]byte(body)); got != (Script{ID: "-"}) {
			t.Errorf("%q: %+v", body, got)
		}
	}
}
