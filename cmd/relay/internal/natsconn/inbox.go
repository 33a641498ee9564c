package natsconn

import (
	"fmt"

	"github.com/nats-io/jwt/v2"

	"github.com/relaymq/relay/internal/permission"
)

// mayListen returns a *permission.Error when the server does not let this user subscribe to a subject. It says so out of band, before it
// answers a ping.
func (c *Conn) mayListen(subject string) error {
	sub, err := c.SubscribeSync(subject)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.FlushTimeout(readyTimeout); err != nil {
		return fmt.Errorf("NATS at %s: %w", c.where, err)
	}
	if v := permission.Of(c.LastError()); v != nil && v.Subject == subject {
		return fmt.Errorf("%w: relay gets its answers on this subject", v)
	}
	return nil
}

// UserName is the NATS user of the configuration: a name, or a public key. It is empty when it does not say.
func (c Config) UserName() string {
	switch {
	case c.User.Reveal() != "":
		return c.User.Reveal()
	case c.Creds != "":
		id, _, err := readCreds(c.Creds)
		if err != nil {
			return "" // connecting says why
		}
		claims, err := jwt.DecodeUserClaims(id.jwt)
		if err != nil {
			return ""
		}
		return claims.Name
	case c.NKey != "":
		id, _, err := readNKey(c.NKey)
		if err != nil {
			return ""
		}
		return id.public
	}
	return ""
}
