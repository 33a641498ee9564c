package route

import (
	"context"
	"fmt"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
)

// Code is what handles messages: a handler that all keys share, or what makes one for each key.
type Code struct {
	Shared any                           // nil: New makes them
	New    func(key string) (any, error) // nil: it is shared
	// Wrap puts batches, if there are any, and middleware around a handler. hung is how many batches were given up and have not returned; nil: there are
	// no batches.
	Wrap       func(handler any) (call Call, hung func() int)
	Check      func(ctx context.Context) error // whether it can work; nil: nobody can say
	Outside    bool                            // it does its work in another process
	OwnBytes   bool                            // it neither changes nor keeps the bytes of its messages
	Middleware bool                            // the route has some of its own
}

// Call is one attempt.
type Call func(ctx context.Context, m Msg) error

// CheckHandler asks a route's handler, and its fallback, whether they can work.
func CheckHandler(ctx context.Context, cfg Spec) error {
	ctx, cancel := context.WithTimeout(ctx, source.SetupTimeout)
	defer cancel()
	if check := cfg.Code.Check; check != nil {
		if err := usercode.Call(func() error { return check(ctx) }); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
	}
	if f := cfg.Fallback; f != nil && f.Code.Check != nil {
		if err := usercode.Call(func() error { return f.Code.Check(ctx) }); err != nil {
			return fmt.Errorf("fallback.handler: %w", err)
		}
	}
	return nil
}
