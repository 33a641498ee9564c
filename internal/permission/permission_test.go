package permission

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

func TestWatch_endsACallThatTheServerRefuses(t *testing.T) {
	deny := &server.SubjectPermission{Deny: []string{"secret.>"}}
	s := natstest.Start(t, natstest.WithOptions(func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: deny, Subscribe: deny}}}
	}))
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
