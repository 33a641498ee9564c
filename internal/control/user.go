package control

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
)

// userPatience bounds the question.
const userPatience = time.Second

// NATSUser is whom the server takes the connection for; empty when it does not say.
func NATSUser(ctx context.Context, nc *nats.Conn) string {
	ctx, cancel := context.WithTimeout(ctx, userPatience)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$SYS.REQ.USER.INFO", nil)
	if err != nil {
		return ""
	}
	var answer struct {
		Data struct {
			User string `json:"user"`
		} `json:"data"`
	}
	if json.Unmarshal(m.Data, &answer) != nil {
		return ""
	}
	return Cut(answer.Data.User, MaxKey)
}
