package permission

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

func TestWatch_endsACallThatTheServerRefuses(t *testing.T) {
	s := natstest.Start(t, natstest.WithConfig(
		`authorization {users: [{user: u, password: p, permissions: {publish: {deny: "secret.>"}, subscribe: {deny: "secret.>"}}}]}`))
	nc := s.Conn(t, nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	for what, call := range map[string]func(ctx context.Context) error{
		"not permitted to publish to secret.a": func(ctx context.Context) error {
			_, err := nc.RequestWithContext(ctx, "secret.a", nil)
			return err
		},
		"not permitted to subscribe to secret.b": func(ctx context.Context) error {
			sub, err := nc.SubscribeSync("secret.b")
			if err == nil {
				_, err = sub.NextMsgWithContext(ctx)
			}
			return err
		},
	} {
		limit, stop := context.WithTimeout(t.Context(), 10*time.Second)
		ctx, cancel := Watch(limit, nc) // an old violation does not end it
		err := Cause(ctx, call(ctx))
		var v *Error
		if !errors.As(err, &v) && !errors.Is(err, nats.ErrPermissionViolation) || v != nil && v.Error() != what {
			t.Errorf("want %q, got %v", what, err)
		}
		cancel()
		stop()
	}
	// Of a violation nobody caused, nothing comes.
	ctx, cancel := Watch(t.Context(), nc)
	if err := nc.Flush(); err != nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, context.Cause(ctx))
	}
	cancel()
	if err := Cause(ctx, errors.New("other")); err.Error() != "other" {
		t.Errorf("cause %v", err)
	}
}

// All subjects that are refused are named, whatever was refused before; where none is, that is one round trip.
func TestProber_namesWhatIsRefused(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.WithConfig(`authorization {users: [{user: u, password: p, permissions: {publish: {deny: "secret.>"}}}]}`))
	p := NewProber(s.Conn(t, nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	probe := func(subject string) Probe { return Probe{What: "trying " + subject, Msg: &nats.Msg{Subject: subject}} }
	for range 2 {
		refused, err := p.Try(ctx, []Probe{probe("secret.a"), probe("open.a"), probe("secret.b")})
		if err != nil || len(refused) != 2 || refused[0].Error() != "trying secret.a: not permitted to publish to secret.a" || refused[1].Error() != "trying secret.b: not permitted to publish to secret.b" {
			t.Errorf("%q, %v", refused, err)
		}
		if refused, err := p.Try(ctx, []Probe{probe("open.a"), probe("open.b")}); err != nil || refused != nil {
			t.Errorf("%q, %v", refused, err)
		}
	}
	var v *Error
	if err := p.Permitted(ctx, &nats.Msg{Subject: "secret.a"}); !errors.As(err, &v) || v.Subject != "secret.a" {
		t.Errorf("got %v", err)
	}
	if err := p.Permitted(ctx, &nats.Msg{Subject: "open.a"}); err != nil {
		t.Errorf("got %v", err)
	}
	p.nc.Close()
	if _, err := p.Try(ctx, []Probe{probe("open.a")}); err == nil {
		t.Error("a closed connection permits everything")
	}
}
