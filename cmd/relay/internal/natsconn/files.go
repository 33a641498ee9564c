package natsconn

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/relaymq/relay/consumer/handler"
)

// held is what the connection says of itself, or trusts, and has from files: they are read at each connect. When they cannot be used,
// because somebody is just writing them, what was read before is used on, and the log says so once.
type held[T any] struct {
	log *slog.Logger
	// read returns the value, and what tells it from others. The error names key and file, and nothing of what is in it.
	read func() (T, []byte, error)

	mu   sync.Mutex
	last T
	sum  [sha256.Size]byte
	said string // what was wrong last
}

// file is a held without its type.
type file interface {
	// changed tells whether the files hold something else than the last connect used.
	changed() (bool, error)
}

// hold reads for the first time.
func hold[T any](log *slog.Logger, read func() (T, []byte, error)) (*held[T], error) {
	value, raw, err := read()
	if err != nil {
		return nil, err
	}
	return &held[T]{log: log, read: read, last: value, sum: sha256.Sum256(raw)}, nil
}

// now reads the files, and returns what to use.
func (h *held[T]) now() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	value, raw, err := h.read()
	switch {
	case err == nil:
		h.last, h.sum, h.said = value, sha256.Sum256(raw), ""
	case err.Error() != h.said:
		h.said = err.Error()
		h.log.Warn("cannot use a file of the NATS connection; relay keeps using its earlier content", "error", err)
	}
	return h.last
}

// same is what now returned last: of one connect, all is of one content.
func (h *held[T]) same() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

func (h *held[T]) changed() (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, raw, err := h.read()
	return err == nil && sha256.Sum256(raw) != h.sum, err
}

// readSecrets reads secrets that may each stand in a file.
func readSecrets(keys []string, list []handler.Secret) (values []string, raw []byte, err error) {
	for i, s := range list {
		v, err := s.Read()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", keys[i], err)
		}
		values = append(values, v)
		raw = fmt.Appendf(raw, "%q ", v)
	}
	return values, raw, nil
}

// identity is a user's seed, with the JWT that goes with it, if there is one.
type identity struct {
	jwt, public string
	seed        []byte
}

func (id identity) sign(nonce []byte) ([]byte, error) {
	kp, err := nkeys.FromSeed(id.seed)
	if err != nil {
		return nil, err
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}

// readCreds reads nats.creds.
func readCreds(path string) (id identity, raw []byte, err error) {
	const key = "nats.creds"
	if id, raw, err = readSeed(key, path); err != nil {
		return id, raw, err
	}
	fail := func(why string) (identity, []byte, error) {
		return identity{}, nil, fmt.Errorf("%s: the file %q: %s", key, path, why)
	}
	if id.jwt, err = nkeys.ParseDecoratedJWT(raw); err != nil {
		return fail("holds no JWT")
	}
	claims, err := jwt.DecodeUserClaims(id.jwt)
	switch {
	case err != nil:
		return fail("holds no JWT of a user")
	case claims.Subject != id.public:
		return fail("its seed does not belong to its JWT")
	}
	return id, raw, nil
}

// readNKey reads nats.nkey.
func readNKey(path string) (id identity, raw []byte, err error) { return readSeed("nats.nkey", path) }

// readSeed reads the seed in the file of a key of the configuration.
func readSeed(key, path string) (id identity, raw []byte, err error) {
	fail := func(why string) (identity, []byte, error) {
		return identity{}, nil, fmt.Errorf("%s: the file %q: %s", key, path, why)
	}
	if raw, err = os.ReadFile(path); err != nil {
		return identity{}, nil, fmt.Errorf("%s: %w", key, err)
	}
	kp, err := nkeys.ParseDecoratedNKey(raw)
	if err != nil {
		return fail("holds no NKey seed of a user")
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return fail("holds no NKey seed of a user")
	}
	id.seed = append([]byte(nil), seed...) // Wipe clears the other
	id.public, err = kp.PublicKey()
	return id, raw, err
}

func readPair(cert, key string) (pair tls.Certificate, raw []byte, err error) {
	certPEM, err := os.ReadFile(cert)
	if err != nil {
		return pair, nil, fmt.Errorf("nats.tls.cert: %w", err)
	}
	keyPEM, err := os.ReadFile(key)
	if err != nil {
		return pair, nil, fmt.Errorf("nats.tls.key: %w", err)
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return pair, nil, fmt.Errorf("nats.tls.cert %q and nats.tls.key %q: %w", cert, key, err)
	}
	return pair, append(certPEM, keyPEM...), nil
}

func readCA(path string) (*x509.CertPool, []byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("nats.tls.ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, nil, fmt.Errorf("nats.tls.ca: the file %q: holds no PEM certificate", path)
	}
	return pool, raw, nil
}

// Renew has the connection use what its files hold now. When they hold something else than at the last connect, and the server accepts
// that, the connection is made anew; what was under way to relay is then delivered again after its ack wait. It returns when the
// connection is back, or with the reason why not; then the connection goes on as it was. While it is away there is nothing to do:
// each try to reconnect reads the files.
func (c *Conn) Renew(ctx context.Context) error {
	var errs []error
	differs := false
	for _, f := range c.files {
		changed, err := f.changed()
		differs, errs = differs || changed, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || !differs || c.Status() != nats.CONNECTED {
		return err
	}
	cfg := c.cfg
	cfg.Logger = nil
	trial, err := Connect(ctx, cfg)
	if err != nil {
		return fmt.Errorf("with the current content of the files under nats: %w", err)
	}
	trial.Close()
	back := c.StatusChanged(nats.CONNECTED)
	defer c.RemoveStatusListener(back)
	if err := c.ForceReconnect(); err != nil {
		return err
	}
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("NATS at %s: relay reconnects with the current content of the files under nats, and is not connected yet: %w", c.where, context.Cause(ctx))
	}
}
