package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/permission"
)

// How long whoever asks the instances waits for the first answer, for one more, and in all.
const (
	firstAnswer = 2 * time.Second
	nextAnswer  = 400 * time.Millisecond // an instance that looks at the server answers up to 200 ms later
	allAnswers  = 10 * time.Second
)

// Bounds of what is taken in, whoever sends it.
const (
	maxAnswers     = 4096
	maxAnswerBytes = 32 << 20
	maxInstances   = 1000
	maxBadAnswers  = 10 // that are named
)

// ErrNobody says that no instance is running.
var ErrNobody = errors.New("no instance of relay answers")

// StatusSubject is where instances are asked how they are.
func StatusSubject(service string) string { return service + ".ctl.view.status" }

// Answers are what the instances of a service say.
type Answers struct {
	// Instances have answered in full or in part, by name.
	Instances []Status
	// Bad says what is wrong with answers that were left out: whoever may subscribe to the subject can send some.
	Bad []string
}

// AskStatus is [Ask] for everything, without what is wrong with answers.
func AskStatus(ctx context.Context, nc *nats.Conn, service string) ([]Status, error) {
	a, err := Ask(ctx, nc, service, StatusRequest{})
	return a.Instances, err
}

// Ask asks all instances of a service how they are. It returns [ErrNobody] when none answers within two seconds; more
// answers are waited for as long as each comes within a moment, for ten seconds at most. What they say is bounded, but
// not to be trusted: it may hold anything.
func Ask(ctx context.Context, nc *nats.Conn, service string, q StatusRequest) (Answers, error) {
	return AskUntil(ctx, nc, service, q, func(Status) bool { return false })
}

// errEnough ends the waiting for answers.
var errEnough = errors.New("no more answers are needed")

// AskUntil is [Ask] that waits for no more answers once enough is true of one, or of a page of one.
func AskUntil(ctx context.Context, nc *nats.Conn, service string, q StatusRequest, enough func(Status) bool) (Answers, error) {
	request, err := json.Marshal(q)
	if err != nil {
		return Answers{}, err
	}
	var a Answers
	pages := make(map[string]map[int]bool)
	err = gather(ctx, nc, StatusSubject(service), request, func(data []byte) error {
		var s Status
		if err := json.Unmarshal(data, &s); err != nil {
			return errors.New("the answer is not a status")
		}
		switch n := len(s.Instance); {
		case n == 0 || n > MaxKey || s.Service != service:
			return errors.New("the answer is not a status of this service")
		case s.Page < 1 || s.Page > s.Pages:
			return fmt.Errorf("instance %q: page %d of %d", s.Instance, s.Page, s.Pages)
		case pages[s.Instance][s.Page]:
			return fmt.Errorf("instance %q answers twice", s.Instance)
		case pages[s.Instance] == nil && len(pages) == maxInstances:
			return fmt.Errorf("more than %d instances", maxInstances)
		case pages[s.Instance] == nil:
			pages[s.Instance] = make(map[int]bool)
		}
		pages[s.Instance][s.Page] = true
		done := enough(s)
		a.add(s)
		if done {
			return errEnough
		}
		return nil
	}, &a.Bad)
	if err == nil && len(a.Instances) == 0 {
		err = ErrNobody
	}
	slices.SortFunc(a.Instances, func(x, y Status) int { return cmp.Compare(x.Instance, y.Instance) })
	return a, err
}

// add puts a page to the others of its instance. They come in order, as they were sent.
func (a *Answers) add(s Status) {
	i := slices.IndexFunc(a.Instances, func(o Status) bool { return o.Instance == s.Instance })
	if i < 0 {
		a.Instances = append(a.Instances, s)
		return
	}
	have := &a.Instances[i]
	for _, rt := range s.Routes {
		j := slices.IndexFunc(have.Routes, func(o RouteStatus) bool { return o.Name == rt.Name })
		if j < 0 {
			have.Routes = append(have.Routes, rt)
			continue
		}
		have.Routes[j].Waiting = append(have.Routes[j].Waiting, rt.Waiting...)
	}
}

// gather sends a request to whoever listens and hands over the answers. One that is refused is skipped and named. It ends
// when no more come, when take says [errEnough], when there are too many, or at the end of ctx, of which it returns the error.
func gather(ctx context.Context, nc *nats.Conn, subject string, request []byte, take func([]byte) error, bad *[]string) error {
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The NATS client drops answers beyond these limits before they take memory.
	if err := sub.SetPendingLimits(maxAnswers, maxAnswerBytes); err != nil {
		return err
	}
	old := nc.LastError()
	if err := nc.PublishRequest(subject, sub.Subject, request); err != nil {
		return err
	}
	refused, bytes := 0, 0
	defer func() {
		if n := refused - maxBadAnswers; n > 0 {
			*bad = append(*bad, fmt.Sprintf("and %d more answers", n))
		}
	}()
	refuse := func(why string) {
		if refused++; refused <= maxBadAnswers {
			*bad = append(*bad, Cut(why, MaxText))
		}
	}
	all, cancel := context.WithTimeout(ctx, allAnswers)
	defer cancel()
	wait := firstAnswer
	for n := 0; n < maxAnswers && bytes < maxAnswerBytes; n++ {
		next, cancel := context.WithTimeout(all, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		switch {
		case errors.Is(err, nats.ErrSlowConsumer):
			refuse("there are more answers than this program can take")
			continue
		case errors.Is(err, nats.ErrNoResponders):
			return nil
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil && next.Err() != nil:
			if all.Err() != nil {
				refuse(fmt.Sprintf("answers still come after %v", allAnswers))
			}
			// The server tells of a violation out of band, and whoever asked waits in vain.
			if v := permission.Of(nc.LastError()); n == 0 && v != nil && nc.LastError() != old && (v.Subject == subject || v.Subject == sub.Subject) {
				return v
			}
			return nil
		case err != nil:
			return err
		}
		bytes += len(m.Data)
		if e := m.Header.Get("Nats-Service-Error"); e != "" {
			refuse(e)
		} else if err := take(m.Data); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			refuse(err.Error())
		}
		wait = nextAnswer
	}
	refuse("there are more answers than this program can take")
	return nil
}
