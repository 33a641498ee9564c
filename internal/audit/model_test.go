package audit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A model of a durable with its retries, the instances that pull from it, and a ledger. It knows what became of each message, which the
// ledger does not.
type model struct {
	record *Record
	now    time.Time
	made   time.Time
	main   durableModel
	retry  durableModel // of the retry stream: what is parked
	insts  []*instModel
	crash  bool   // something happened that nobody can count
	stolen uint64 // messages that somebody took away once they had come
}

// durableModel is a durable as its server has it.
type durableModel struct {
	name      string
	delivered uint64
	waiting   []*msgModel // not delivered yet
	out       []*msgModel // delivered and not settled
}

type msgModel struct {
	holder *instModel // nobody's: it comes again
}

type instModel struct {
	name   string
	number uint64
	alive  bool
	counts Counts // since the last addition, as the rest
	by     map[string]Deliveries
}

const modelRoute = "billing"

func newModel(instances int) *model {
	made := time.Now().Add(-time.Hour).UTC()
	m := &model{made: made, now: time.Now(), main: durableModel{name: Name("ORDERS", modelRoute)}, retry: durableModel{name: Name("RELAY_RETRY", modelRoute)}}
	for range instances {
		m.begin()
	}
	m.record = begin("ORDERS", modelRoute, m.insts[0].addition(m))
	return m
}

func (m *model) begin() {
	m.insts = append(m.insts, &instModel{name: fmt.Sprintf("i%d", len(m.insts)), alive: true, by: map[string]Deliveries{}})
}

// addition is what an instance has to add. What it says of the durables' start is what the first one saw.
func (i *instModel) addition(m *model) Addition {
	hand := 0
	for _, msg := range slices.Concat(m.main.out, m.retry.out) {
		if msg.holder == i {
			hand++
		}
	}
	return Addition{Routes: map[string]Counts{modelRoute: i.counts}, Hand: hand, Opening: Opening{At: m.made}, Durables: map[string]Durable{
		m.main.name:  {Start{Created: m.made}, i.by[m.main.name]},
		m.retry.name: {Start{Created: m.made}, i.by[m.retry.name]},
	}}
}

func (m *model) write(i *instModel) {
	i.number++
	if !m.record.add(i.name, i.name, i.number, i.addition(m), m.now) {
		panic("the record has an addition already that was not made")
	}
	i.counts, i.by = Counts{}, map[string]Deliveries{}
}

// deliver gives the first message that may come to i, or to nobody: a delivery that is lost on its way.
func (d *durableModel) deliver(i *instModel) {
	var msg *msgModel
	first := false
	if k := slices.IndexFunc(d.out, func(o *msgModel) bool { return o.holder == nil }); k >= 0 {
		msg = d.out[k]
	} else if len(d.waiting) > 0 {
		msg, first = d.waiting[0], true
		d.waiting = d.waiting[1:]
		d.out = append(d.out, msg)
	} else {
		return
	}
	d.delivered++
	if msg.holder = i; i == nil {
		return
	}
	got := i.by[d.name]
	got.Arrived++
	if first {
		got.First++
	}
	i.by[d.name] = got
}

func (d *durableModel) settle(msg *msgModel) {
	d.out = slices.DeleteFunc(d.out, func(o *msgModel) bool { return o == msg })
}

// server is what the server says.
func (m *model) server() Server {
	say := func(d durableModel) Counted {
		return Counted{Created: m.made, Delivered: d.delivered, Outstanding: len(d.out), Pending: uint64(len(d.waiting))}
	}
	return Server{Durables: map[string]Counted{m.main.name: say(m.main), m.retry.name: say(m.retry)}, Parked: uint64(len(m.retry.waiting) + len(m.retry.out))}
}

func (m *model) living() (list []*instModel) {
	for _, i := range m.insts {
		if i.alive {
			list = append(list, i)
		}
	}
	return list
}

// held are the messages that i has, with the durable that they came from.
func (m *model) held(i *instModel) (list []*msgModel, from []*durableModel) {
	for _, d := range []*durableModel{&m.main, &m.retry} {
		for _, msg := range d.out {
			if msg.holder == i {
				list, from = append(list, msg), append(from, d)
			}
		}
	}
	return list, from
}

func (m *model) kill(i *instModel) {
	list, _ := m.held(i)
	for _, msg := range list {
		msg.holder = nil
	}
	i.alive, m.crash = false, true
}

// Whatever becomes of messages, in whatever order the instances write: with nothing lost the ledger says so, what crashes may explain is
// never called unexplained, and what was taken away is found to the message.
func TestCompare_model(t *testing.T) {
	for range 20 { // what few cases show is seldom
		rapid.Check(t, compareModel)
	}
}

func compareModel(t *rapid.T) {
	m := newModel(rapid.IntRange(1, 3).Draw(t, "instances"))
	crashes := rapid.Bool().Draw(t, "crashes")
	thefts := !crashes && rapid.Bool().Draw(t, "thefts")
	for range rapid.IntRange(1, 120).Draw(t, "steps") {
		living := m.living()
		if len(living) == 0 {
			m.begin()
			living = m.living()
		}
		i := rapid.SampledFrom(living).Draw(t, "instance")
		list, from := m.held(i)
		end := func(count *uint64) {
			if len(list) == 0 {
				return
			}
			k := rapid.IntRange(0, len(list)-1).Draw(t, "message")
			*count++
			from[k].settle(list[k])
		}
		switch what := rapid.SampledFrom([]string{
			"publish", "deliver", "deliver", "redeliver", "done", "dead", "dropped", "park", "nak", "write", "kill", "lost", "no ack", "steal", "end",
		}).Draw(t, "what"); what {
		case "publish":
			m.main.waiting = append(m.main.waiting, new(msgModel))
		case "deliver", "redeliver":
			d := &m.main
			if what == "redeliver" {
				d = &m.retry
			}
			before := i.by[d.name].First
			d.deliver(i)
			if d == &m.main {
				i.counts.Received += i.by[d.name].First - before
			}
		case "done":
			end(&i.counts.Done)
		case "dead":
			end(&i.counts.Dead)
		case "dropped":
			end(&i.counts.Dropped)
		case "park":
			if k := slices.Index(from, &m.main); k >= 0 {
				m.retry.waiting = append(m.retry.waiting, new(msgModel))
				m.main.settle(list[k])
			}
		case "nak":
			if len(list) > 0 {
				list[0].holder = nil
				d := i.by[from[0].name]
				d.Naked++
				i.by[from[0].name] = d
			}
		case "write":
			m.write(i)
		case "end": // it gives back what it has, and is not heard of any more
			for k, msg := range list {
				msg.holder = nil
				d := i.by[from[k].name]
				d.Naked++
				i.by[from[k].name] = d
			}
			m.write(i)
			delete(m.record.Instances, i.name)
			i.alive = false
		case "kill":
			if crashes {
				m.kill(i)
			}
		case "lost": // on its way to an instance that ends
			if crashes {
				m.main.deliver(nil)
				m.crash = true
			}
		case "no ack": // it was handled, and comes again
			if crashes && len(list) > 0 {
				i.counts.Done++
				list[0].holder = nil
				m.crash = true
			}
		case "steal":
			if !thefts {
				break
			}
			if len(m.retry.waiting) > 0 {
				m.retry.waiting = m.retry.waiting[1:]
				m.stolen++
			}
		}
	}
	for _, i := range m.living() {
		m.write(i)
	}
	s := m.server()
	b := Compare(m.record, s, s, func(name string) bool {
		return slices.ContainsFunc(m.living(), func(i *instModel) bool { return i.name == name })
	})
	switch {
	case !m.crash && m.stolen == 0 && b.Verdict != Balanced,
		m.crash && b.Verdict == Unexplained,
		!m.crash && m.stolen > 0 && (b.Verdict != Unexplained || b.Unexplained() != m.stolen || b.Difference != int64(m.stolen)):
		t.Fatalf("crash %v, %d stolen: %+v\nrecord %+v\nserver %+v", m.crash, m.stolen, b, *m.record, s)
	}
	// Who asks while the counting goes on is told so, and not that something is missing.
	moving := m.server()
	moving.Parked++
	if b := Compare(m.record, moving, s, nil); b.Difference != 0 && b.Verdict != Moving {
		t.Fatalf("moving: %+v", b)
	}
}
