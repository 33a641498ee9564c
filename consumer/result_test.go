package consumer

import (
	"strings"
	"testing"

	"github.com/relaymq/relay/consumer/internal/reply"
)

// A result is bounded, the last one counts, what the handler keeps is its own, and nothing comes in after the attempt.
func TestMsg_Reply(t *testing.T) {
	m := &Msg{}
	if m.Reply([]byte("for nobody")); m.WantsReply() || m.MaxReply() != 0 || !m.ReplyHeader("A", "b") {
		t.Error("a message without a caller wants a reply")
	}
	r := RecordReply(m, 4)
	if !m.WantsReply() || m.MaxReply() != 4 {
		t.Error("a message with a caller wants none")
	}
	m.Reply([]byte("too long"))
	if data, cut := r.Data(); string(data) != "too " || !cut {
		t.Errorf("got %q, cut %v", data, cut)
	}
	kept := []byte("last")
	m.Reply(kept)
	kept[0] = 'p'
	if data, cut := r.Data(); string(data) != "last" || cut {
		t.Errorf("got %q, cut %v", data, cut)
	}
	r.kept.Close()
	m.Reply([]byte("late"))
	m.ReplyHeader("Late", "1")
	if data, _ := r.Data(); string(data) != "last" || len(r.Header()) > 0 {
		t.Errorf("after the attempt: %q, %v", data, r.Header())
	}
}

func TestMsg_ReplyHeader(t *testing.T) {
	m := &Msg{}
	r := RecordReply(m, 4)
	for _, bad := range [][2]string{
		{"", "x"}, {"A B", "x"}, {"A:", "x"}, {"A\r\n", "x"}, {"Ä", "x"}, {"relay-Id", "x"}, {"NATS-Msg-Id", "x"},
		{"A", "x\r\nB: y"}, {"A", "x\x00"}, {"A", strings.Repeat("x", reply.MaxHeaderBytes)},
	} {
		if m.ReplyHeader(bad[0], bad[1]) {
			t.Errorf("taken: %q: %.20q", bad[0], bad[1])
		}
	}
	for range reply.MaxHeaders + 10 { // the same one takes no more room
		if !m.ReplyHeader("Content-Type", strings.Repeat("x", reply.MaxHeaderBytes-len("Content-Type"))) {
			t.Fatal("refused")
		}
	}
	m.ReplyHeader("Content-Type", "text/plain")
	for i := range reply.MaxHeaders - 1 {
		if !m.ReplyHeader("A"+strings.Repeat("a", i), "v") {
			t.Fatalf("header %d refused", i)
		}
	}
	if m.ReplyHeader("One-More", "v") {
		t.Error("there is no bound")
	}
	if h := r.Header(); h.Get("Content-Type") != "text/plain" || len(h) != reply.MaxHeaders {
		t.Errorf("%v", h)
	}
}
