package natsconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
)

// options turns the configuration into the library's. An error names the key and the file.
func (c Config) options(d *dialer) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectMore, reconnectMore),
		nats.ReconnectBufSize(-1), // see the package comment
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsMissed),
		nats.FlusherTimeout(flushTimeout),
		nats.ReconnectOnFlusherError(), // else what the write held is dropped and the connection goes on
		nats.IgnoreAuthErrorAbort(),    // else the same refusal twice closes the connection for good
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialer resolves names, and can be cancelled
	}
	if c.InboxPrefix != "" {
		opts = append(opts, wrap("nats.inbox_prefix", nats.CustomInboxPrefix(c.InboxPrefix)))
	}
	if c.InProcess != nil {
		if c.InProcessAuth != nil {
			opts = append(opts, c.InProcessAuth)
		}
		return append(opts, nats.InProcessServer(c.InProcess)), nil
	}
	secure, err := c.checkURL()
	if err != nil {
		return nil, err
	}
	auth, err := c.auth()
	if err != nil {
		return nil, err
	}
	opts = append(opts, auth...)
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("nats.tls: cert and key go together")
	}
	if secure || c.CA != "" || c.Cert != "" {
		opts = append(opts, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	// Both are read now, so that a wrong file ends the start, and again at each reconnect.
	if c.CA != "" {
		opts = append(opts, wrap("nats.tls.ca", nats.RootCAs(c.CA)))
	}
	if c.Cert != "" {
		opts = append(opts, wrap("nats.tls.cert", nats.ClientCert(c.Cert, c.Key)))
	}
	return opts, nil
}

// checkURL tells whether any of the servers asks for TLS: then all must have it, for the library has one setting.
func (c Config) checkURL() (secure bool, err error) {
	if c.URL == "" {
		return false, errors.New("nats.url: must not be empty")
	}
	for s := range strings.SplitSeq(c.URL, ",") {
		s = strings.TrimSpace(s)
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" {
			return false, fmt.Errorf("nats.url: not an address: %s", redact(s)) // url.Parse would quote the password
		}
		switch u.Scheme {
		case "nats":
		case "tls":
			secure = true
		default:
			return false, fmt.Errorf("nats.url: must begin with nats:// or tls:// (got %q)", u.Scheme)
		}
	}
	return secure, nil
}

func (c Config) auth() ([]nats.Option, error) {
	var opts []nats.Option
	if c.Creds != "" {
		if err := check("nats.creds", c.Creds); err != nil {
			return nil, err
		}
		opts = append(opts, nats.UserCredentials(c.Creds)) // read at each connect
	}
	if c.NKey != "" {
		if err := check("nats.nkey", c.NKey); err != nil {
			return nil, err
		}
		public, err := publicKey(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("nats.nkey: %w", err)
		}
		opts = append(opts, nats.Nkey(public, func(nonce []byte) ([]byte, error) { return sign(c.NKey, nonce) }))
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token))
	}
	if len(opts) > 1 {
		return nil, errors.New("nats: only one of creds, nkey, user and token may be set")
	}
	return opts, nil
}

// check opens a file with a secret, so that a wrong path ends the start with its name.
func check(key, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return f.Close()
}

// wrap puts the key in front of an option's error.
func wrap(key string, o nats.Option) nats.Option {
	return func(opts *nats.Options) error {
		if err := o(opts); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	}
}

// redact takes out what stands before an @: a user, a password, a token.
func redact(urls string) string {
	var out []string
	for s := range strings.SplitSeq(urls, ",") {
		s = strings.TrimSpace(s)
		scheme, rest, ok := strings.Cut(s, "://")
		if !ok {
			scheme, rest = "nats", s
		}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
		out = append(out, scheme+"://"+rest)
	}
	return strings.Join(out, ",")
}
