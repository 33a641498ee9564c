package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
)

// act sends an order to all instances of a service, and returns what each of them says became of it, by their names. Says is what an answer
// says, for the complaint about one that does not. [ErrNobody] says that no instance has answered.
func act[T interface{ by() answerer }](ctx context.Context, nc *nats.Conn, subject string, order any, about answerer, says string) (list []T, bad []string, err error) {
	request, err := json.Marshal(order)
	if err != nil {
		return nil, nil, err
	}
	strange := errors.New("the answer does not say " + says)
	err = gather(ctx, nc, subject, request, func(data []byte) error {
		var answer T
		if json.Unmarshal(data, &answer) != nil {
			return strange
		}
		by := answer.by()
		if by.instance == "" || len(by.instance) > MaxKey || by.service != about.service || by.route != about.route {
			return strange
		}
		if slices.ContainsFunc(list, func(o T) bool { return o.by().instance == by.instance }) {
			return fmt.Errorf("instance %q answers twice", by.instance)
		}
		list = append(list, answer)
		return nil
	}, &bad)
	if err == nil && len(list) == 0 {
		err = ErrNobody
	}
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(a.by().instance, b.by().instance) })
	return list, bad, err
}

// answerer is whose answer something is, and about what.
type answerer struct{ instance, service, route string }
