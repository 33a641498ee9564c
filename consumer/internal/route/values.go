package route

import (
	"context"
	"sync/atomic"
)

// values are those that the contexts of handlers have from the context of Run.
type values struct {
	of atomic.Pointer[context.Context]
}

// Set takes the values of ctx, and not its end.
func (v *values) Set(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	v.of.Store(&ctx)
}

// get is what the context of a handler gives for a key; nil before Run.
func (v *values) get(key any) any {
	if ctx := v.of.Load(); ctx != nil {
		return (*ctx).Value(key)
	}
	return nil
}
