package control

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/version"
)

// Instances answer on two families of subjects, so that who may look and who may act are two permissions of NATS:
//
//	<service>.ctl.view.>   what an instance says of itself
//	<service>.ctl.act.>    what an operator wants of it at once; what is to last is an order in a bucket
//
// Who asks names the subject of the answer, and the server does not ask whether that one may publish there: answers go to inboxes only.
// Any client that may subscribe to these subjects can answer in relay's place, so the asking side checks every answer.

const (
	// pageBytes is how large a page of an answer gets, or less if the server takes less.
	pageBytes = 256 << 10
	// pageSlack is left for headers of the page.
	pageSlack = 1 << 10
)

// Server says what an instance answers.
type Server struct {
	Conn              *nats.Conn
	Service, Instance string
	// Status is what it says of itself; Resume ends waits for an operator, and Handover gives a route away: who answers, and of which route, is
	// filled in. They are called one after the other, each for itself.
	Status   func(StatusRequest) Status
	Resume   func(orders.Order) Woken
	Handover func(HandoverOrder) HandedOver
}

// Serve has questions answered until stop is called. The instance is a NATS micro service then, so that `nats micro ls`, `info` and `stats` see it
// too.
func (s *Server) Serve() (stop func(), err error) {
	service, err := newMicroService(s.Conn, micro.ServiceIdentity{
		Name: s.Service, Version: version.Semver(), Metadata: map[string]string{"instance": s.Instance},
	}, "relay: supervised consumers of JetStream streams")
	if err != nil {
		return nil, fmt.Errorf("micro service: %w", err)
	}
	for _, e := range []struct {
		name, subject string
		answer        func(*microRequest)
	}{
		{"status", StatusSubject(s.Service), s.answerStatus},
		{"resume", WakeSubject(s.Service), s.answerResume},
		{"handover", HandoverSubject(s.Service), s.answerHandover},
	} {
		if err = service.endpoint(e.name, e.subject, e.answer); err != nil {
			service.stop()
			return nil, fmt.Errorf("micro service: %w", err)
		}
	}
	return service.stop, nil
}

// room is how many bytes a page may have.
func (s *Server) room() int { return min(pageBytes, int(s.Conn.MaxPayload())) - pageSlack }

// answerStatus answers in as many messages as it takes. Whoever asked and heard nothing asks again.
func (s *Server) answerStatus(q *microRequest) {
	var of StatusRequest
	if len(q.Data) > 0 && json.Unmarshal(q.Data, &of) != nil {
		q.fail("400", "this is not a request for a status")
		return
	}
	for _, page := range pages(s.Status(of), s.room()) {
		if q.respond(page) != nil {
			return
		}
	}
}

func (s *Server) answerResume(q *microRequest) {
	var order orders.Order
	if json.Unmarshal(q.Data, &order) != nil || order.Format > orders.Format {
		q.fail("400", "this is not an order, or it is from a newer version of relay")
		return
	}
	w := s.Resume(order)
	w.Instance, w.Service, w.Route = s.Instance, s.Service, order.Route
	_ = q.respond(w)
}

func (s *Server) answerHandover(q *microRequest) {
	var order HandoverOrder
	if json.Unmarshal(q.Data, &order) != nil || order.Format > orders.Format {
		q.fail("400", "this is not an order, or it is from a newer version of relay")
		return
	}
	out := s.Handover(order)
	out.Instance, out.Service, out.Route = s.Instance, s.Service, order.Route
	_ = q.respond(out)
}

// pages splits a status into parts of at most so many bytes each. The first has all but the keys and, if there are very many,
// some of the routes.
func pages(s Status, room int) (list []Status) {
	routes := s.Routes
	s.Routes = nil
	page, used := s, size(s)
	next := func() {
		list = append(list, page)
		page, used = Status{Instance: s.Instance, Service: s.Service, Started: s.Started}, 512
	}
	for _, rt := range routes {
		rt.Waiting = nil
		n := size(rt)
		if used+n > room && len(page.Routes) > 0 {
			next()
		}
		page.Routes = append(page.Routes, rt)
		used += n
	}
	for _, rt := range routes {
		at := -1
		for _, k := range rt.Waiting {
			n := size(k)
			if used+n > room {
				next()
				at = -1
			}
			if at < 0 {
				at = slices.IndexFunc(page.Routes, func(on RouteStatus) bool { return on.Name == rt.Name })
			}
			if at < 0 {
				at = len(page.Routes)
				page.Routes = append(page.Routes, RouteStatus{Name: rt.Name})
				used += size(page.Routes[at])
			}
			page.Routes[at].Waiting = append(page.Routes[at].Waiting, k)
			used += n
		}
	}
	next()
	for i := range list {
		list[i].Page, list[i].Pages = i+1, len(list)
	}
	return list
}

// size is how many bytes v has as JSON, and the comma behind it.
func size(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		return 0
	}
	return len(b) + 1
}
