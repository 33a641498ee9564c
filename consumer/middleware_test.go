package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
)

// diary is what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// noted is middleware that notes when it is passed.
func (d *diary) noted(name string) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, m *Msg) error {
			err := next.Handle(ctx, m)
			d.note("%s: %v", name, VerdictOf(err).Kind)
			return err
		})
	}
}

// living is a handler that is all that relay asks of one.
type living struct {
	d    *diary
	done chan struct{}
}

type valueKey struct{}

func (l living) Check(ctx context.Context) error {
	l.d.note("check %v", ctx.Value(valueKey{}))
	return nil
}

func (l living) Start(ctx context.Context) error {
	l.d.note("start %v", ctx.Value(valueKey{}))
	return nil
}

func (l living) Stop(ctx context.Context) error {
	l.d.note("stop %v", ctx.Value(valueKey{}))
	return nil
}

func (l living) Handle(ctx context.Context, m *Msg) error {
	l.d.note("handle %v %s", ctx.Value(valueKey{}), m.Header.Get("Added"))
	defer close(l.done)
	return Drop("enough")
}

// What a handler is beside its Handle survives the middleware around it, whose order is that of the lists; and contexts have the
// values that were given to Run, but not its end.
func TestMiddleware_keepsWhatTheHandlerIs(t *testing.T) {
	for _, made := range []string{"shared", "by a factory"} {
		t.Run(made, func(t *testing.T) {
			w := newWorld(t)
			d := new(diary)
			h := living{d, make(chan struct{})}
			add := func(next Handler) Handler {
				return HandlerFunc(func(ctx context.Context, m *Msg) error {
					if ctx.Done() == nil || context.Cause(ctx) != nil {
						return errors.New("the context of an attempt must be able to end, and not have ended")
					}
					m.Header = map[string][]string{"Added": {"by middleware"}}
					return next.Handle(ctx, m)
				})
			}
			rt := Route{Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Use: []Middleware{d.noted("inner"), add}}
			if made == "shared" {
				rt.Handler = h
			} else {
				rt.Factory, rt.Check = func(string) (Handler, error) { return h, nil }, h.Check
			}
			r, err := New(w.nc, Config{Use: []Middleware{d.noted("outer")}}, rt)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "a value"))
			ran := make(chan error, 1)
			go func() { ran <- r.Run(ctx) }()
			w.publish("orders.eu", 1)
			select {
			case <-h.done:
			case <-time.After(30 * time.Second):
				t.Error("the message was not handled")
			}
			cancel()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			const want = "check a value\nstart a value\nhandle a value by middleware\ninner: drop\nouter: drop\nstop a value"
			if got := d.String(); got != want {
				t.Errorf("what happened:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// A middleware around a handler whose work is done elsewhere gets bytes of its own: what it changes is not what is dead-lettered.
func TestMiddleware_mayChangeTheMessageOfOutsideHandlers(t *testing.T) {
	w := newWorld(t)
	plain := Route{Name: "a", Subjects: []string{"orders.a"}, Handler: outsider{}}
	used := Route{Name: "b", Subjects: []string{"orders.b"}, Handler: outsider{}, Use: []Middleware{func(next Handler) Handler { return next }}}
	r, err := New(w.nc, Config{}, plain, used)
	if err != nil {
		t.Fatal(err)
	}
	a, b := r.engine.Routes.All()[0], r.engine.Routes.All()[1]
	if !a.Spec.Code.OwnBytes || b.Spec.Code.OwnBytes || a.Guarded || b.Guarded {
		t.Errorf("own bytes: %v without middleware, %v with it; guarded: %v and %v", a.Spec.Code.OwnBytes, b.Spec.Code.OwnBytes, a.Guarded, b.Guarded)
	}
}

type outsider struct{ HandlerFunc }

func (outsider) OutOfProcess() {}

// Middleware that is nil is refused; one that returns nothing stops its route, which says why.
func TestMiddleware_thatIsNone(t *testing.T) {
	w := newWorld(t)
	rt := Route{Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Use: []Middleware{nil}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	_, err := New(w.nc, Config{Use: []Middleware{nil}}, rt)
	if err == nil || !strings.Contains(err.Error(), "Use[0]: is nil") || !strings.Contains(err.Error(), "route billing: Use[0]: is nil") {
		t.Errorf("nil middleware: %v", err)
	}
	rt.Use = []Middleware{func(Handler) Handler { return nil }}
	if v := VerdictOf(rt.wrap(rt.Handler, nil).Handle(t.Context(), nil)); !v.FailRoute || v.Err.Error() != "middleware Use[0] returned no handler" {
		t.Errorf("middleware that returns nothing: %+v", v)
	}
}

// Every verdict can be read back out of the error that carries it, as the supervisor takes it.
func TestVerdictOf(t *testing.T) {
	why := errors.New("why")
	for _, c := range []struct {
		err  error
		want string // of the exported fields
		kind supervise.Kind
	}{
		{nil, "ack", supervise.Ack},
		{why, "retry why", supervise.Retry},
		{Dead(why), "dead why", supervise.Dead},
		{fmt.Errorf("outer: %w", Dead(why)), "dead outer: why", supervise.Dead},
		{Drop("why"), "drop why", supervise.Drop},
		{Snooze(time.Minute), "snooze snooze 1m0s", supervise.Snooze},
		{RetryIn(time.Second, why), "retry why 1s", supervise.Retry},
		{RetryAfter(time.Second, why), "retry why 1s pause", supervise.Retry},
		{NotStarted(why), "retry why not-started", supervise.Retry},
		{NoAnswer(why), "retry why no-answer", supervise.Retry},
		{StopChild(why), "ack why stop-child", supervise.Ack},
		{Crashed(why), "retry why crashed", supervise.Retry},
		{FailRoute(why), "retry why not-started fail-route", supervise.Retry},
	} {
		v := VerdictOf(c.err)
		text := []string{v.Kind.String()}
		if v.Err != nil {
			text = append(text, v.Err.Error())
		}
		if v.Delay > 0 {
			text = append(text, v.Delay.String())
		}
		for name, set := range map[string]bool{"pause": v.Pause, "crashed": v.Crashed, "stop-child": v.StopChild} {
			if set {
				text = append(text, name)
			}
		}
		if v.NotStarted {
			text = append(text, "not-started")
		}
		if v.NoAnswer {
			text = append(text, "no-answer")
		}
		if v.FailRoute {
			text = append(text, "fail-route")
		}
		if got := strings.Join(text, " "); got != c.want {
			t.Errorf("verdict of %v: %q, want %q", c.err, got, c.want)
		}
		if in, _ := usercode.VerdictOf(c.err); in.Kind != c.kind || in.NotStarted != v.NotStarted || in.NoAnswer != v.NoAnswer {
			t.Errorf("verdict of %v for the supervisor: %v, want %v", c.err, in.Kind, c.kind)
		}
	}
}

// A body that is no T is dead at once, and the error says where the fault is.
func TestJSON(t *testing.T) {
	type order struct {
		ID   int `json:"id"`
		Item struct {
			Price float64 `json:"price"`
		} `json:"item"`
	}
	var got order
	h := JSON(func(_ context.Context, o order, m *Msg) error {
		got = o
		return nil
	})
	for body, want := range map[string]string{
		`{"id":7,"item":{"price":1.5},"more":1}`: "ack",
		``:                                       "dead: the body cannot be read as consumer.order: at byte 0: unexpected end of JSON input",
		`{"id":7,}`:                              "dead: the body cannot be read as consumer.order: at byte 9: invalid character '}' looking for beginning of object key string",
		`{"item":{"price":"high"}}`:              "dead: the body cannot be read as consumer.order: at byte 23, field item.price: got a JSON string, expected float64",
		`[]`:                                     "dead: the body cannot be read as consumer.order: at byte 1, the whole value: got a JSON array, expected consumer.order",
	} {
		v := VerdictOf(h.Handle(t.Context(), &Msg{Data: []byte(body)}))
		text := v.Kind.String()
		if v.Err != nil {
			text += ": " + v.Err.Error()
		}
		if text != want {
			t.Errorf("%s: %s, want %s", body, text, want)
		}
	}
	if got.ID != 7 || got.Item.Price != 1.5 {
		t.Errorf("got %+v", got)
	}
}
