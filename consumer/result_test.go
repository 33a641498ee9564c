package consumer

import (
	"testing"
)

// A result is bounded, the last one counts, what the handler keeps is its own, and nothing comes in after the attempt.
func TestMsg_Reply(t *testing.T) {
	m := &Msg{}
	if m.Reply([]byte("for nobody")); m.WantsReply() || m.MaxReply() != 0 || !m.ReplyHeader("A", "b") {
		t.Error("a message without a caller wants a reply")
	}
	if data, cut := new(Result).Data(); data != nil || cut || new(Result).Header() != nil {
		t.Error("a result of no message has something")
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
