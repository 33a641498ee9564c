package transient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"testing/synctest"
)

func TestIs(t *testing.T) {
	for _, err := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrReconnectBufExceeded,
		&jetstream.APIError{Code: 503, ErrorCode: 10008}, &jetstream.APIError{Code: 400, ErrorCode: 10005},
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, Made(fmt.Errorf("bucket: %w", jetstream.ErrStreamNotFound)), Made(jetstream.ErrBucketNotFound),
	} {
		if !Is(fmt.Errorf("stream ORDERS: %w", err)) {
			t.Errorf("%v is a fault", err)
		}
	}
	for _, err := range []error{
		nil, context.Canceled, Made(nil), Made(errors.New("other")), nats.ErrConnectionClosed, nats.ErrAuthorization, jetstream.ErrStreamNotFound, jetstream.ErrConsumerNotFound,
		jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, errors.New("other"),
		&jetstream.APIError{Code: 500, ErrorCode: 10074}, &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")},
	} {
		if Is(err) {
			t.Errorf("%v passes by itself", err)
		}
	}
}

func TestPlain(t *testing.T) {
	err := Plain(fmt.Errorf("forward to out: %w", nats.ErrReconnectBufExceeded))
	if err.Error() != "forward to out: the connection to NATS is away" || !Is(err) {
		t.Errorf("%v", err)
	}
	if other := errors.New("other"); Plain(other) != other || Plain(nil) != nil {
		t.Error("others change")
	}
}

func TestPatience(t *testing.T) {
	var p Patience
	for want := 100 * time.Millisecond; want < time.Minute; want *= 2 {
		if d := p.Next(5 * time.Second); d > min(want, 5*time.Second) || d < min(want, 5*time.Second)/2-1 {
			t.Errorf("%v, want %v or up to a half less", d, want)
		}
	}
}

func TestRaced(t *testing.T) {
	for _, err := range []error{
		jetstream.ErrKeyExists, jetstream.ErrKeyRevisionMismatch, &jetstream.APIError{Code: 400, ErrorCode: 10071}, &jetstream.APIError{Code: 400, ErrorCode: 10164},
	} {
		if !Raced(fmt.Errorf("bucket: %w", err)) {
			t.Errorf("%v is no race", err)
		}
	}
	for _, err := range []error{nil, jetstream.ErrKeyNotFound, nats.ErrTimeout, &jetstream.APIError{Code: 503, ErrorCode: 10008}} {
		if Raced(err) {
			t.Errorf("%v is a race", err)
		}
	}
}

func TestSpans(t *testing.T) {
	var s Spans
	for i := range 30 {
		if early := s.Early(); early != (i < 10) {
			t.Errorf("try %d is early: %v", i+1, early)
		}
		want := time.Second
		if i >= 10 {
			want = min(time.Second<<(i-9), 10*time.Second)
		}
		if d := s.Next(time.Second, 10*time.Second); d != want {
			t.Errorf("try %d: %v, want %v", i+1, d, want)
		}
	}
}

// A pause lasts as long as it says, or until there is nothing to wait for any more.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if Pause(t.Context(), time.Minute); time.Since(began) != time.Minute {
			t.Errorf("it lasted %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if Pause(ctx, time.Minute); time.Since(began) != time.Minute+time.Second {
			t.Errorf("it went on for %v after its context", time.Since(began)-time.Minute)
		}
	})
}
