package caller

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// Answer is what came of a question or of a reply.
type Answer uint8

// The answers there are.
const (
	Yes    Answer = iota // somebody is there
	No                   // somebody is there, and says no
	Nobody               // no responders
)

func (a Answer) String() string { return [...]string{"yes", "no", "nobody"}[a] }

// noResponders is the status with which the server answers for nobody.
const noResponders = "503"

func answerOf(m *nats.Msg) Answer {
	if len(m.Header) == 0 {
		return Yes
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == noResponders {
		return Nobody
	}
	for name, values := range m.Header {
		if strings.EqualFold(name, HeaderInterested) && len(values) > 0 && strings.EqualFold(strings.TrimSpace(values[0]), "no") {
			return No
		}
	}
	return Yes
}

// Ask sends the question whether the message is still wanted. The caller of Ask closes what it returns.
func (l *Line) Ask(interest, id, subject string) (*Asked, error) {
	return l.AskThen(interest, id, subject, nil)
}

// AskThen is Ask for whoever does not [Asked.Wait]: then is called once with the answer, if one comes before Close, and possibly before
// AskThen returns. It must not block.
func (l *Line) AskThen(interest, id, subject string, then func(Answer)) (*Asked, error) {
	a := &Asked{then: then}
	if err := l.begin(a); err != nil {
		return nil, err
	}
	q := &nats.Msg{Subject: interest, Reply: l.inbox + a.token, Header: nats.Header{HeaderID: {id}, HeaderSubject: {subject}}}
	if err := l.nc.PublishMsg(q); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}
