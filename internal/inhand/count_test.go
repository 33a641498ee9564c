package inhand

import "testing"

func TestCount_tellsOnceWhenThereIsLessThanAwaited(t *testing.T) {
	told := 0
	l := NewCount(func() { told++ })
	for range 10 {
		l.Take(1, 1<<20)
	}
	l.Take(0, 100)
	if m, b := l.Held(); m != 10 || b != 10<<20+100 {
		t.Errorf("%d messages, %d bytes", m, b)
	}
	l.Give(1, 1<<20)
	if told != 0 {
		t.Error("nobody asked")
	}
	l.Await(5, 4<<20+100)
	for want := 8; want >= 0; want-- {
		l.Give(1, 1<<20)
		if m, _ := l.Held(); m != want {
			t.Errorf("%d messages, want %d", m, want)
		}
		if now := want <= 4; now != (told == 1) {
			t.Errorf("told %d times with %d messages", told, want)
		}
	}
	l.Await(1, 200)
	if told != 2 {
		t.Error("it is not told that there is less already")
	}
}
