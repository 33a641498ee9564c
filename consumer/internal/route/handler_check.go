package route

import (
	"context"
	"fmt"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
)

// checkHandler asks a route's handler, and its fallback, whether they can work.
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
