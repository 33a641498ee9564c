package usercode

import (
	"context"
	"reflect"
	"time"
)

// Same tells whether two handlers are one object. Functions cannot be compared.
func Same(a, b any) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t != nil && t.Comparable() && a == b
}

// Shared is a handler that several routes have: none of them stops it when it ends. The zero value is none.
type Shared struct {
	handler any
	timeout time.Duration // of its end
	life    *Life
}

// Next is a handler in the place of this one. If both are the same, its life goes on.
func (s Shared) Next(handler any, timeout time.Duration) Shared {
	next := Shared{handler, timeout, s.life}
	if !Same(s.handler, handler) {
		next.life = NewLife(handler)
		next.life.Keep()
	}
	return next
}

// Life is what the routes share; nil: the handler need not be started nor stopped.
func (s Shared) Life() *Life { return s.life }

// EndBefore stops the handler, which no route has any more, unless the next one is the same.
func (s Shared) EndBefore(ctx context.Context, next Shared) {
	if s.life != nil && s.life != next.life {
		s.life.LetGo()
		_ = s.life.End(ctx, s.timeout)
	}
}
