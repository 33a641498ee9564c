package headerlist

import "testing"

func TestList(t *testing.T) {
	l := New([]string{"Traceparent", "ce-*"})
	for name, want := range map[string]bool{
		"Traceparent": true, "TRACEPARENT": true, "traceparent2": false, "trace": false, "": false,
		"ce-id": true, "Ce-Type": true, "ce-": true, "ce": false, "x-ce-id": false,
	} {
		if l.Has(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	if l.Empty() || !(List{}).Empty() || !New(nil).Empty() || New(nil).Has("a") || (List{}).Has("") {
		t.Error("an empty list has something")
	}
	if !New([]string{"*"}).Has("Anything") {
		t.Error("* is not everything")
	}
}
