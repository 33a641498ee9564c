package trouble

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
)

// What is away is tried until it is there, and is in the list meanwhile; any other fault ends it at once, and so does the end of the context.
func TestList_Persist(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := NewList(slog.New(slog.DiscardHandler), func(string, error) {})
		tries := 0
		err := list.Persist(t.Context(), "the stream", func(context.Context) error {
			if tries++; tries < 20 {
				return nats.ErrNoResponders
			}
			if list.Err() == nil {
				t.Error("nobody is told what is waited for")
			}
			return nil
		})
		if err != nil || tries != 20 || list.Err() != nil {
			t.Errorf("%v after %d tries; %v", err, tries, list.Err())
		}
		broken := errors.New("the subject overlaps")
		if err := list.Persist(t.Context(), "the stream", func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := list.Persist(ctx, "the stream", func(context.Context) error { cancel(); return nats.ErrTimeout }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
