package control

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orders"
)

// serve has an instance answer that has so many routes, each with so many keys that wait.
func serve(t *testing.T, s *natstest.Server, routes, keys int) {
	t.Helper()
	st := Status{Instance: "a", Service: "relay", Started: time.Now()}
	for i := range routes {
		rt := RouteStatus{Name: fmt.Sprintf("r%d", i)}
		for k := range keys {
			rt.Waiting = append(rt.Waiting, KeyStatus{Key: fmt.Sprint(k), Why: strings.Repeat("w", 100)})
		}
		st.Routes = append(st.Routes, rt)
	}
	server := Server{
		Conn: s.Conn(t), Service: "relay", Instance: "a", Status: func(StatusRequest) Status { return st },
		Resume:   func(orders.Order) Woken { return Woken{Known: true} },
		Handover: func(HandoverOrder) HandedOver { return HandedOver{Giving: true} },
	}
	stop, err := server.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := server.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A status that does not fit into one message comes in pages, of which nothing is lost; orders are answered.
func TestServer_answers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ routes, keys int }{{0, 0}, {1, 1}, {3, 5000}, {3000, 2}} {
		s := natstest.Start(t)
		serve(t, s, c.routes, c.keys)
		nc := s.Conn(t)
		list, err := AskStatus(t.Context(), nc, "relay")
		if err != nil || len(list) != 1 || len(list[0].Routes) != c.routes {
			t.Fatalf("%+v: %d instances, %v", c, len(list), err)
		}
		for _, rt := range list[0].Routes {
			if len(rt.Waiting) != c.keys {
				t.Errorf("%+v: %s has %d keys", c, rt.Name, len(rt.Waiting))
			}
		}
		woken, _, err := Wake(t.Context(), nc, "relay", orders.Order{Route: "r0"})
		if err != nil || len(woken) != 1 || !woken[0].Known || woken[0].Instance != "a" || woken[0].Service != "relay" || woken[0].Route != "r0" {
			t.Errorf("resume: %+v, %v", woken, err)
		}
		handed, _, err := Handover(t.Context(), nc, "relay", HandoverOrder{Route: "r0"})
		if err != nil || len(handed) != 1 || !handed[0].Giving || handed[0].Instance != "a" || handed[0].Service != "relay" || handed[0].Route != "r0" {
			t.Errorf("handover: %+v, %v", handed, err)
		}
	}
}

// What is no question, or an order of a newer relay, is refused. Answers go to inboxes only: who may ask for a status could else have relay write into
// buckets and streams.
func TestServer_refuses(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	serve(t, s, 1, 1)
	nc := s.Conn(t)
	for subject, data := range map[string]string{
		StatusSubject("relay"): "{", WakeSubject("relay"): fmt.Sprintf(`{"route":"r0","format":%d}`, orders.Format+1), HandoverSubject("relay"): "no",
	} {
		m, err := nc.Request(subject, []byte(data), 5*time.Second)
		if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "400" {
			t.Errorf("%s: %v, %v", subject, m, err)
		}
	}
	elsewhere, err := nc.SubscribeSync("orders.eu")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(StatusSubject("relay"), "orders.eu", nil); err != nil {
		t.Fatal(err)
	}
	if m, err := elsewhere.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("it answered on the subject of a stream: %s", m.Data)
	}
	m, err := nc.Request("$SRV.STATS.relay", nil, 5*time.Second)
	var st micro.Stats
	if err == nil {
		err = json.Unmarshal(m.Data, &st)
	}
	errs := 0
	for _, e := range st.Endpoints {
		errs += e.NumErrors
	}
	if err != nil || len(st.Endpoints) != 3 || errs != 3 {
		t.Errorf("%d endpoints, %d errors, %v", len(st.Endpoints), errs, err)
	}
	for _, verb := range []string{"PING", "INFO"} {
		if m, err := nc.Request("$SRV."+verb, nil, 5*time.Second); err != nil || !strings.Contains(string(m.Data), `"instance":"a"`) {
			t.Errorf("%s: %v, %v", verb, m, err)
		}
	}
}
