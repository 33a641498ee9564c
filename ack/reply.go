package ack

import (
	"errors"
	"strings"
	"time"
)

// arrival is what the reply subject of a delivery says.
type arrival struct {
	sequence, deliveries uint64
	consumer             uint64 // the number of the delivery
	time                 time.Time
	pending              uint64 // messages that the consumer has not delivered for the first time
}

var errNoDelivery = errors.New("ack: not a delivery of a JetStream consumer")

// parseReply reads the reply subject of a delivery, without the allocations of nats.go's Metadata:
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>[.…]
//
// (nats.go, parser.GetMetadataFields). Names hold no dots.
func parseReply(reply string) (a arrival, err error) {
	if !strings.HasPrefix(reply, "$JS.ACK.") {
		return a, errNoDelivery
	}
	const v1, v2 = 9, 11 // tokens
	var ends [v2]int     // of the tokens
	n := 0
	for i := 0; i < len(reply) && n < v2; i++ {
		if reply[i] == '.' {
			ends[n] = i
			n++
		}
	}
	if n < v2 {
		ends[n] = len(reply)
		n++
	}
	first := 4
	switch n {
	case v1:
	case v2:
		first = 6
	default:
		return a, errNoDelivery
	}
	token := func(i int) string { return reply[ends[first+i-1]+1 : ends[first+i]] }
	deliveries, ok1 := number(token(0))
	sequence, ok2 := number(token(1))
	consumer, ok4 := number(token(2))
	stamp, ok3 := number(token(3))
	pending, ok5 := number(token(4))
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return a, errNoDelivery
	}
	return arrival{sequence: sequence, deliveries: deliveries, consumer: consumer, time: time.Unix(0, int64(stamp)), pending: pending}, nil
}

// number reads at most 19 digits.
func number(s string) (n uint64, ok bool) {
	if len(s) == 0 || len(s) > 19 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}
