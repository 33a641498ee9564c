// Package permission makes calls end at once when the server refuses them. The server tells the connection of a violation
// out of band and leaves the caller to its time-out (nats-server v2.15.2), which says neither why nor which subject.
package permission

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Error names the subject that a user may not use.
type Error struct {
	Subject   string
	Subscribe bool // or publish
}

func (e *Error) Error() string {
	if e.Subscribe {
		return "not permitted to subscribe to " + e.Subject
	}
	return "not permitted to publish to " + e.Subject
}

// The text is the only place where the server names the subject.
var violation = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "(.*?)"`)

// Of returns the *Error that err, as the connection has it, stands for; nil when it is another error.
func Of(err error) *Error {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	m := violation.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	return &Error{Subject: m[2], Subscribe: m[1] == "Subscription" || m[1] == "subscription"}
}

// lookEvery is how soon a violation is seen. The connection's error handler belongs to whoever made the connection.
const lookEvery = 20 * time.Millisecond

// Watch returns a context that ends, with an *Error as its cause, when the server tells nc of a violation. cancel must be
// called, and waits for the watch to end. Subjects that begin with one of those in but do not count: what is sent there may fail.
func Watch(ctx context.Context, nc *nats.Conn, but ...string) (watched context.Context, cancel func()) {
	watched, end := context.WithCancelCause(ctx)
	done := make(chan struct{})
	old := nc.LastError()
	go func() {
		defer close(done)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			err := nc.LastError()
			if err == old {
				continue
			}
			old = err
			if v := Of(err); v != nil && !slices.ContainsFunc(but, func(prefix string) bool { return strings.HasPrefix(v.Subject, prefix) }) {
				end(v)
			}
		}
	}()
	return watched, func() {
		end(context.Canceled)
		<-done
	}
}

// Cause is the violation that ended ctx, unless err tells of it already, or else err.
func Cause(ctx context.Context, err error) error {
	var v, told *Error
	if err != nil && errors.As(context.Cause(ctx), &v) && !errors.As(err, &told) {
		return v
	}
	return err
}
