package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Matching asks for the first message of a stream that matches: with it the server says how many follow. It counts by its index of
// subjects, without a look at the messages (nats-server, getDirectRequest and filestore.NumPending). header is that of the first
// one; api is the prefix of the JetStream API.
func Matching(ctx context.Context, nc *nats.Conn, api, stream, filter string) (n uint64, header nats.Header, err error) {
	request, err := json.Marshal(map[string]any{"next_by_subj": filter, "batch": 1})
	if err != nil {
		return 0, nil, err
	}
	m, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: api + "DIRECT.GET." + stream, Data: request})
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return 0, nil, fmt.Errorf("stream %s does not answer", stream)
	case err != nil:
		return 0, nil, err
	}
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return 0, nil, nil
	default:
		return 0, nil, errors.New(strings.TrimSpace(status + " " + m.Header.Get("Description")))
	}
	follow, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("stream %s: no count in the answer", stream)
	}
	return follow + 1, m.Header, nil
}
