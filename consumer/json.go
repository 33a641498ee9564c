package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// JSON is a handler of bodies that are JSON. A body that cannot be read as a T goes to the dead letters at once, since no later
// attempt could read it. The error says where the fault is. Keys that T does not have are ignored; a type with methods of its own
// (UnmarshalJSON) may be stricter.
func JSON[T any](handle func(ctx context.Context, v T, m *Msg) error) Handler {
	return HandlerFunc(func(ctx context.Context, m *Msg) error {
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			return Dead(fmt.Errorf("the body cannot be read as %v: %w", reflect.TypeFor[T](), atOffset(err)))
		}
		return handle(ctx, v, m)
	})
}

// atOffset adds where the fault is, if the error knows that.
func atOffset(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("at byte %d: %w", syntax.Offset, err)
	}
	var other *json.UnmarshalTypeError
	if errors.As(err, &other) {
		field := other.Field
		if field == "" {
			field = "the whole value"
		} else {
			field = "field " + field
		}
		return fmt.Errorf("at byte %d, %s: got a JSON %s, expected %v", other.Offset, field, other.Value, other.Type)
	}
	return err
}
