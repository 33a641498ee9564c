package control

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/subject"
)

// microService is a NATS micro service (ADR-32), which nats micro ls, info and stats see. Package micro publishes its answers to whatever subject
// the question names, with the rights of relay: who may only ask for a status would write into buckets and streams. This one answers in
// inboxes only. There is no queue group: who asks wants to hear of every instance.
type microService struct {
	nc          *nats.Conn
	identity    micro.ServiceIdentity
	description string
	started     time.Time
	subs        []*nats.Subscription

	mu        sync.Mutex
	endpoints []*micro.EndpointStats
}

func newMicroService(nc *nats.Conn, identity micro.ServiceIdentity, description string) (*microService, error) {
	identity.ID = nuid.Next()
	s := &microService{nc: nc, identity: identity, description: description, started: time.Now().UTC()}
	for _, v := range []struct {
		verb   micro.Verb
		answer func() any
	}{
		{micro.PingVerb, func() any { return micro.Ping{ServiceIdentity: s.identity, Type: micro.PingResponseType} }},
		{micro.InfoVerb, func() any { return s.info() }},
		{micro.StatsVerb, func() any { return s.stats() }},
	} {
		for _, of := range [][2]string{{}, {s.identity.Name}, {s.identity.Name, s.identity.ID}} {
			at, err := micro.ControlSubject(v.verb, of[0], of[1])
			if err == nil {
				err = s.listen(at, func(q *microRequest) { _ = q.respond(v.answer()) })
			}
			if err != nil {
				s.stop()
				return nil, err
			}
		}
	}
	return s, nil
}

// listen has questions answered that come from an inbox.
func (s *microService) listen(at string, answer func(*microRequest)) error {
	sub, err := s.nc.Subscribe(at, func(m *nats.Msg) {
		if subject.Inbox(m.Reply, s.nc.Opts.InboxPrefix) {
			answer(&microRequest{Msg: m})
		}
	})
	if err == nil {
		s.subs = append(s.subs, sub)
	}
	return err
}

// endpoint answers questions on a subject, one after the other.
func (s *microService) endpoint(name, at string, answer func(*microRequest)) error {
	st := &micro.EndpointStats{Name: name, Subject: at}
	s.mu.Lock()
	s.endpoints = append(s.endpoints, st)
	s.mu.Unlock()
	return s.listen(at, func(q *microRequest) {
		began := time.Now()
		answer(q)
		s.mu.Lock()
		defer s.mu.Unlock()
		st.NumRequests++
		st.ProcessingTime += time.Since(began)
		st.AverageProcessingTime = st.ProcessingTime / time.Duration(st.NumRequests)
		if q.failed != nil {
			st.NumErrors++
			st.LastError = q.failed.Error()
		}
	})
}

func (s *microService) info() micro.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := micro.Info{ServiceIdentity: s.identity, Type: micro.InfoResponseType, Description: s.description}
	for _, e := range s.endpoints {
		i.Endpoints = append(i.Endpoints, micro.EndpointInfo{Name: e.Name, Subject: e.Subject})
	}
	return i
}

func (s *microService) stats() micro.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := micro.Stats{ServiceIdentity: s.identity, Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.endpoints {
		st.Endpoints = append(st.Endpoints, new(*e))
	}
	return st
}

func (s *microService) stop() {
	for _, sub := range s.subs {
		_ = sub.Unsubscribe()
	}
}

// microRequest is what an endpoint is asked.
type microRequest struct {
	*nats.Msg
	failed error
}

func (q *microRequest) respond(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = q.Msg.Respond(data)
	}
	q.failed = err
	return err
}

// fail answers with an error.
func (q *microRequest) fail(code, text string) {
	_ = q.RespondMsg(&nats.Msg{Header: nats.Header{micro.ErrorHeader: {text}, micro.ErrorCodeHeader: {code}}})
	q.failed = errors.New(code + ": " + text)
}
