package route

import (
	"context"
	"testing"
)

func TestValues(t *testing.T) {
	t.Parallel()
	type key struct{}
	var v values
	if v.get(key{}) != nil {
		t.Error("there is a value before Run")
	}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "shop"))
	v.Set(ctx)
	cancel()
	if v.get(key{}) != "shop" || v.get("other") != nil {
		t.Errorf("%v, %v", v.get(key{}), v.get("other"))
	}
	if err := (*v.of.Load()).Err(); err != nil {
		t.Errorf("it ends with Run: %v", err)
	}
}
