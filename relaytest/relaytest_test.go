package relaytest_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/relaytest"
	"github.com/relaymq/relay/supervisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// failing is a test that may fail, and says why.
type failing struct {
	testing.TB
	said []string
}

func (f *failing) Helper() {}
func (f *failing) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

// A handler is tested without a server, and under the clock of a bubble: its verdict, its reply, its panic, its deadline.
func TestHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := consumer.HandlerFunc(func(ctx context.Context, m *consumer.Msg) error {
			switch m.Subject {
			case "panic":
				panic("oh")
			case "hang":
				<-ctx.Done()
				return ctx.Err()
			case "bad":
				return consumer.Dead(errors.New("no address"))
			}
			m.Reply([]byte("done " + m.ID))
			return nil
		})
		m := relaytest.JSON("ok", map[string]int{"id": 7})
		if string(m.Data) != `{"id":7}` || m.Attempt != 1 || m.ID == relaytest.Msg("ok", "").ID {
			t.Errorf("built %+v", m)
		}
		if got := relaytest.Handle(t, h, m).Want(consumer.VerdictAck); string(got.Reply) != "done "+m.ID {
			t.Errorf("reply %q", got.Reply)
		}
		if got := relaytest.Handle(t, h, relaytest.Msg("panic", "")).Want(consumer.VerdictRetry); !got.Crashed || got.Err.Error() != "panic: oh" {
			t.Errorf("a panic: %+v", got.Verdict)
		}
		slow := relaytest.Msg("hang", "")
		slow.Deadline = time.Now().Add(time.Hour)
		began := time.Now()
		relaytest.Handle(t, h, slow).Want(consumer.VerdictRetry)
		if took := time.Since(began); took != time.Hour {
			t.Errorf("the context ended after %v", took)
		}
		f := &failing{TB: t}
		relaytest.Handle(f, h, relaytest.Msg("bad", "")).Want(consumer.VerdictAck)
		if want := "the verdict is dead: no address, want ack"; len(f.said) != 1 || f.said[0] != want {
			t.Errorf("a wrong verdict says %q, want %q", f.said, want)
		}
	})
}

// Routes run on a server of the test's own, and each end of a message is seen: done after a failure, dropped, dead with its entry,
// and that of the route that is asked for. An end that is not wanted is told with its attempts.
func TestStart(t *testing.T) {
	t.Parallel()
	quick := consumer.Retry{MaxAttempts: 2, Backoff: supervisor.Backoff{Min: 10 * time.Millisecond}}
	billing := consumer.Route{
		Name: "billing", Subjects: []string{"orders.>"}, Retry: quick,
		Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			switch {
			case m.Subject == "orders.drop":
				return consumer.Drop("a test order")
			case m.Subject == "orders.panic":
				panic("oh")
			case m.Attempt == 1 || m.Subject == "orders.dead":
				return errors.New("down")
			}
			return nil
		}),
	}
	audit := consumer.Route{
		Name: "audit", Subjects: []string{"orders.audit"}, Retry: quick,
		Handler: consumer.HandlerFunc(func(context.Context, *consumer.Msg) error { return nil }),
	}
	audit.Durable, billing.Durable = "shared", "shared" // the more specific one gets orders.audit
	r := relaytest.Start(t, consumer.Config{}, billing, audit)
	if got := r.Publish("orders.eu", "{}").Want(relaytest.Done); len(got.Attempts) != 2 || got.Attempts[0].Err.Error() != "down" {
		t.Errorf("attempts: %+v", got.Attempts)
	}
	r.Publish("orders.drop", "{}").Want(relaytest.Dropped)
	for _, subject := range []string{"orders.dead", "orders.panic"} {
		got := r.Publish(subject, "the body").Want(relaytest.DeadLettered)
		if e := got.DeadLetter; e == nil || string(e.Data) != "the body" || e.Attempts != 2 || len(got.Attempts) != 2 {
			t.Errorf("%s: dead letter %+v after %+v", subject, e, got.Attempts)
		}
	}
	r.Publish("orders.audit", "{}").At("audit").Want(relaytest.Done)
}

// Nothing that goes into a program of somebody imports the testing server.
func TestImports_theServerStaysInTests(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../consumer", "../client", "../dlq", "../ack", "../supervisor", "../schedule", "../event").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if strings.Contains(dep, "nats-server") || strings.HasSuffix(dep, "/relaytest") || strings.HasSuffix(dep, "/natstest") || dep == "testing" {
			t.Errorf("a package of relay imports %s", dep)
		}
	}
}

// The example works; as an Example with an output it would fail under -v, where a test prints that it runs.
func TestExample(t *testing.T) { testBilling(t) }
