package caller

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestReply(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reply Reply
		want  map[string]string
	}{
		{Reply{ID: "a.1", Outcome: Done, Attempts: 1, Error: "not told"}, map[string]string{
			HeaderID: "a.1", HeaderOutcome: "done", HeaderAttempts: "1", "Nats-Msg-Id": "a.1.done",
		}},
		{Reply{ID: "a.1", Outcome: Done, Attempts: 3, Replay: 2, Cut: true, Header: nats.Header{"Content-Type": {"text/plain"}}}, map[string]string{
			HeaderID: "a.1", HeaderOutcome: "done", HeaderAttempts: "3", "Nats-Msg-Id": "a.1.done.2", HeaderTruncated: "true", "Content-Type": "text/plain",
		}},
		{Reply{ID: "a.1", Outcome: Dead, Attempts: 20, Error: "refused"}, map[string]string{
			HeaderID: "a.1", HeaderOutcome: "dead", HeaderAttempts: "20", "Nats-Msg-Id": "a.1.dead", HeaderError: "refused",
		}},
	} {
		m := tt.reply.To("replies.x")
		got := make(map[string]string)
		for name, values := range m.Header {
			got[name] = values[0]
		}
		if m.Subject != "replies.x" || !maps.Equal(got, tt.want) {
			t.Errorf("%+v: to %s: %v, want %v", tt.reply, m.Subject, got, tt.want)
		}
	}
}

// A message is held for as long as its telling says. When there is no room for its body, or its caller is absent, one try has to do.
func TestHolding(t *testing.T) {
	t.Parallel()
	var h Holding
	far := time.Now().Add(time.Hour)
	var list []*Telling
	released, over := 0, []Told{}
	for i, tt := range []struct {
		size  int
		why   error
		waits bool
	}{
		{1 << 20, nil, true},
		{1 << 20, ErrAbsent, false},
		{2 << 20, nil, true},
		{1, nil, false},
	} {
		l := h.Hold(&Telling{Until: far}, tt.size, tt.why, func() { released++ }, func(told Told) { over = append(over, told) })
		if waits := l.Until.Equal(far); waits != tt.waits {
			t.Errorf("number %d waits: %v", i, waits)
		}
		list = append(list, l)
	}
	if h.Bytes() != 4<<20+1 || h.Telling() != 4 {
		t.Errorf("%d bytes are held, %d callers are told", h.Bytes(), h.Telling())
	}
	for _, l := range list {
		l.Released()
		l.Over(Delivered)
	}
	h.Wait()
	if h.Bytes() != 0 || h.Telling() != 0 || released != 4 || !slices.Equal(over, []Told{Delivered, Delivered, Delivered, Delivered}) {
		t.Errorf("%d bytes are held, %d callers are told, %d released, over %v", h.Bytes(), h.Telling(), released, over)
	}
}
