package source

import (
	"log/slog"
	"testing"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/internal/retry"
)

func TestSource_idIsThatOfTheOrigin(t *testing.T) {
	for _, stream := range []string{"ORDERS", "0", "a.b"} {
		s := New(&Instance{Log: slog.New(slog.DiscardHandler), Stores: new(stores.Stores)}, stream, "d0")
		for _, seq := range []uint64{0, 1, 10, 1<<64 - 1} {
			at := time.Unix(1_700_000_000, int64(seq>>1))
			want := retry.Origin{Stream: stream, Consumer: "d0", Sequence: seq, Time: at}.ID()
			if got := s.id(&ack.Delivery{Sequence: seq, Time: at}); got != want {
				t.Errorf("id %q, want %q", got, want)
			}
		}
	}
}
