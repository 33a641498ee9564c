package consumer

import (
	"context"
	"fmt"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
)

// checkHandler asks a route's handler, and its fallback, whether they can work.
func checkHandler(ctx context.Context, cfg Route) error {
	check := cfg.Check
	if c, ok := cfg.Handler.(Checker); ok {
		check = c.Check
	}
	ctx, cancel := context.WithTimeout(ctx, source.SetupTimeout)
	defer cancel()
	if check != nil {
		if err := usercode.Call(func() error { return check(ctx) }); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
	}
	if f := cfg.Fallback; f != nil {
		if c, ok := f.Handler.(Checker); ok {
			if err := usercode.Call(func() error { return c.Check(ctx) }); err != nil {
				return fmt.Errorf("fallback.handler: %w", err)
			}
		}
	}
	return nil
}
