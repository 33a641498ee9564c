package natsconn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler"
)

// options turns the configuration into the library's. An error names the key and the file. What stands in files is
// read now, so that a wrong file ends the start, and again at each connect.
func (c Config) options(d *dialer, log *slog.Logger) (opts []nats.Option, files []file, err error) {
	opts = []nats.Option{
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
		return append(opts, nats.InProcessServer(c.InProcess)), nil, nil
	}
	secure, err := c.checkURL()
	if err != nil {
		return nil, nil, err
	}
	auth, files, err := c.auth(d, log)
	if err != nil {
		return nil, nil, err
	}
	opts = append(opts, auth...)
	if (c.Cert == "") != (c.Key == "") {
		return nil, nil, errors.New("nats.tls: cert and key belong together: set both or neither")
	}
	if secure || c.CA != "" || c.Cert != "" {
		opts = append(opts, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if c.CA != "" {
		ca, err := hold(log, func() (*x509.CertPool, []byte, error) { return readCA(c.CA) })
		if err != nil {
			return nil, nil, err
		}
		files = append(files, ca)
		opts = append(opts, func(o *nats.Options) error {
			o.RootCAsCB = func() (*x509.CertPool, error) { return ca.now(), nil }
			return nil
		})
	}
	if c.Cert != "" {
		pair, err := hold(log, func() (tls.Certificate, []byte, error) { return readPair(c.Cert, c.Key) })
		if err != nil {
			return nil, nil, err
		}
		files = append(files, pair)
		opts = append(opts, func(o *nats.Options) error {
			o.TLSCertCB = func() (tls.Certificate, error) { return pair.now(), nil }
			return nil
		})
	}
	return opts, files, nil
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

func (c Config) auth(d *dialer, log *slog.Logger) (opts []nats.Option, files []file, err error) {
	if c.Creds != "" {
		creds, err := hold(log, func() (identity, []byte, error) { return readCreds(c.Creds) })
		if err != nil {
			return nil, nil, err
		}
		files = append(files, creds)
		opts = append(opts, nats.UserJWT(func() (string, error) { return creds.now().jwt, nil }, func(nonce []byte) ([]byte, error) { return creds.same().sign(nonce) }))
	}
	if c.NKey != "" {
		nkey, err := hold(log, func() (identity, []byte, error) { return readNKey(c.NKey) })
		if err != nil {
			return nil, nil, err
		}
		files = append(files, nkey)
		d.nkey = func() string { return nkey.now().public }
		opts = append(opts, nats.Nkey(nkey.same().public, func(nonce []byte) ([]byte, error) { return nkey.same().sign(nonce) }))
	}
	if c.User.Reveal() != "" {
		user, err := hold(log, func() ([]string, []byte, error) {
			return readSecrets([]string{"nats.user", "nats.password"}, []handler.Secret{c.User, c.Password})
		})
		if err != nil {
			return nil, nil, err
		}
		files = append(files, user)
		opts = append(opts, nats.UserInfoHandler(func() (string, string) { v := user.now(); return v[0], v[1] }))
	}
	if c.Token.Reveal() != "" {
		token, err := hold(log, func() ([]string, []byte, error) {
			return readSecrets([]string{"nats.token"}, []handler.Secret{c.Token})
		})
		if err != nil {
			return nil, nil, err
		}
		files = append(files, token)
		opts = append(opts, nats.TokenHandler(func() string { return token.now()[0] }))
	}
	if len(opts) > 1 {
		return nil, nil, errors.New("nats: only one of creds, nkey, user and token may be set")
	}
	return opts, files, nil
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
