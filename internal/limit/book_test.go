package limit

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func names(book *Book) (list []string) {
	for _, s := range book.Status() {
		list = append(list, s.Name)
	}
	return list
}

// A limit that is planned bounds whoever has it, and is shown to nobody until it is accepted, or set.
func TestBook_Plan(t *testing.T) {
	book := NewBook()
	book.Set("old", Bounds{Places: 1})
	if l := book.Plan("old", Bounds{Places: 9}); l != book.Get("old") || l.Status().Bounds.Places != 1 {
		t.Errorf("a plan changed the limit that is there: %+v", l.Status())
	}
	book.Plan("gone", Bounds{Places: 1})
	book.Discard()
	if book.Get("gone") != nil || book.Get("old") == nil {
		t.Error("Discard forgets what was planned, and nothing else")
	}
	for name, accept := range map[string]func(){
		"accepted": book.Accept,
		"set":      func() { book.Set("set", Bounds{Places: 3}) },
	} {
		l := book.Plan(name, Bounds{Places: 3})
		q := newQueue(book, "m", func(string) {}, Need{Limit: l})
		for range 4 {
			q.waiting++
			q.try(func(string) {})
		}
		if q.running != 3 || book.Get(name) != l || slices.Contains(names(book), name) {
			t.Errorf("%s, while it is planned: %d run, status of %v", name, q.running, names(book))
		}
		accept()
		book.Discard()
		if book.Get(name) != l || !slices.Contains(names(book), name) {
			t.Errorf("%s, once it is in force: status of %v", name, names(book))
		}
	}
}

// Strangers may choose the values of a template. What nobody uses is forgotten, unless a new bucket would allow more than the old one.
func TestLimit_forgetsBucketsThatNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook()
		l := book.Set("a", Bounds{Rate: 1, Burst: 2})
		once := func(value string) *queue {
			q := newQueue(book, "m", func(string) {}, Need{l, value})
			q.waiting = 1
			q.try(func(string) {})
			return q
		}
		drop := func(q *queue) {
			passAll(q.places.Free(nil))
			passAll(q.places.Drop())
		}
		kept := once("kept")
		for i := range 500 {
			drop(once(fmt.Sprint(i)))
		}
		if n := l.Status().Buckets; n != 501 {
			t.Errorf("%d buckets, want 501: each has a token less than a new one", n)
		}
		time.Sleep(time.Second) // the tokens are there again
		for i := range 5000 {
			drop(once(fmt.Sprint("b", i)))
			time.Sleep(10 * time.Millisecond)
		}
		// A hundred values come in the second that a token takes.
		if n := l.Status().Buckets; n > 2*101+64+1 {
			t.Errorf("%d buckets", n)
		}
		if l.Status().Holders["m"] != 1 || l.buckets["kept"] != kept.places.seats[0].bucket {
			t.Errorf("what is in use was forgotten: %+v", l.Status())
		}
	})
}

// Whoever watches a limit is told of each change of what is taken and of who waits.
func TestLimit_Watch(t *testing.T) {
	book := NewBook()
	l := book.Set("a", Bounds{Places: 1})
	told := 0
	l.Watch(func() { told++ })
	q := newQueue(book, "m", func(string) {}, Need{Limit: l})
	is := func(what string, want int) {
		t.Helper()
		if told != want {
			t.Errorf("%s: told %d times, want %d", what, told, want)
		}
		told = 0
	}
	q.waiting = 1
	q.try(func(string) {})
	is("a place is taken", 1)
	q.waiting = 1
	q.try(func(string) {})
	is("one waits", 1)
	q.waiting = 0
	passAll(q.places.Free(nil))
	is("the place is given back", 1)
	l.Watch(nil)
	q.waiting = 1
	q.try(func(string) {})
	is("nobody watches", 0)
}

// While a word of Slow holds, only a stricter one counts.
func TestLimit_Slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewBook().Set("a", Bounds{Places: 5})
		at := time.Now()
		for _, c := range []struct {
			what        string
			starts      int
			for_        time.Duration
			wantLeft    int
			wantSeconds int
		}{
			{"the first", 3, 10 * time.Second, 3, 10},
			{"more starts", 5, time.Minute, 3, 10},
			{"as many, for less", 3, time.Second, 3, 10},
			{"as many, for longer", 3, 20 * time.Second, 3, 20},
			{"fewer, for less", 0, 5 * time.Second, 0, 5},
		} {
			l.Slow(c.starts, at.Add(c.for_), c.what)
			s := l.Status()
			if s.Left != c.wantLeft || !s.Until.Equal(at.Add(time.Duration(c.wantSeconds)*time.Second)) {
				t.Errorf("%s: %d until %v, want %d and %d s", c.what, s.Left, s.Until.Sub(at), c.wantLeft, c.wantSeconds)
			}
		}
		time.Sleep(6 * time.Second)
		if s := l.Status(); !s.Until.IsZero() {
			t.Errorf("when it is over: %+v", s)
		}
		if l.Slow(4, time.Now().Add(time.Second), "laxer than the one that is over"); l.Status().Left != 4 {
			t.Errorf("%+v", l.Status())
		}
	})
}

// A bucket is called by its limit and its value; what all of a member's messages need has no value.
func TestBucket_Name(t *testing.T) {
	book := NewBook()
	l := book.Set("a", Bounds{Places: 1})
	p := book.Places(&Member{Name: "m"}, Need{l, ""}, Need{l, "eu"})
	var got []string
	for b := range p.Buckets() {
		got = append(got, fmt.Sprint(b.Name(), " ", b.Limit(), " ", b.Shared()))
	}
	if want := []string{"a[eu] a false", "a a true"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range p.Buckets() {
		break // which must end it
	}
}
