package natsconn

import (
	"fmt"
	"os"

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
		return fmt.Errorf("%w: answers are to come there", v)
	}
	return nil
}

// UserName is the NATS user of the configuration: a name, or a public key. It is empty when it does not say.
func (c Config) UserName() string {
	switch {
	case c.User != "":
		return c.User
	case c.Creds != "":
		text, err := os.ReadFile(c.Creds)
		if err != nil {
			return "" // connecting says why
		}
		token, err := jwt.ParseDecoratedJWT(text)
		if err != nil {
			return ""
		}
		claims, err := jwt.DecodeUserClaims(token)
		if err != nil {
			return ""
		}
		return claims.Name
	case c.NKey != "":
		public, err := publicKey(c.NKey)
		if err != nil {
			return ""
		}
		return public
	}
	return ""
}
