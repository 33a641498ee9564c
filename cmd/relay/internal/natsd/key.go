package natsd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// With a listener the server takes one user only, whose key is in the store. It is an NKey: the seed never goes over the
// wire, so that somebody else who listens on the port while relay is away learns nothing from those who knock.
const (
	keyName = "client.nk"  // the seed; kept over restarts, for the programs that use it
	urlName = "client.url" // where the server really listens; there while it runs
)

// ErrNoListener is that the embedded server takes no connections from outside of its process.
var ErrNoListener = errors.New("the embedded server takes no connections")

// Client returns the URL and the file of the NKey by which other programs of the same user reach the embedded server of a
// store. listen is the configured address, which is where it is when it does not run.
func Client(storeDir, listen string) (url, nkeyFile string, err error) {
	if listen == "" {
		return "", "", ErrNoListener
	}
	url = "nats://" + listen
	if b, err := os.ReadFile(filepath.Join(storeDir, urlName)); err == nil {
		url = strings.TrimSpace(string(b))
	}
	nkeyFile = KeyFile(storeDir)
	_, err = os.Stat(nkeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return url, "", nil // relay has never listened: what refuses the connection says more
	case err != nil:
		return "", "", fmt.Errorf("the key of the embedded server: %w (only the user that runs relay may read it)", err)
	}
	return url, nkeyFile, nil
}

// KeyFile is where the seed of the NKey is.
func KeyFile(storeDir string) string { return filepath.Join(storeDir, keyName) }

// key is the server's only user.
type key struct{ pair nkeys.KeyPair }

// clientKey reads the key of the store, or makes it.
func (s *store) clientKey() (*key, error) {
	name := KeyFile(s.dir)
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s.newKey(name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := fi.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: other users may read this key (mode %v): remove the file, and relay creates a new key", name, mode)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	pair, err := nkeys.ParseDecoratedNKey(b)
	if err != nil {
		return nil, fmt.Errorf("%s: not an NKey: remove the file, and relay creates a new key", name)
	}
	return &key{pair}, nil
}

func (s *store) newKey(name string) (*key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	seed, err := pair.Seed() // the pair's own bytes
	if err != nil {
		return nil, err
	}
	return &key{pair}, writeFile(name, slices.Concat(seed, []byte("\n")))
}

// writeFile replaces a file as a whole. The directory is ours alone.
func writeFile(name string, data []byte) error {
	tmp := name + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// secure makes it the only user. A nil key leaves the server open, which is right when nobody can connect.
func (k *key) secure(o *server.Options) error {
	if k == nil {
		return nil
	}
	public, err := k.pair.PublicKey()
	if err != nil {
		return err
	}
	o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	return nil
}

// option is how this process connects.
func (k *key) option() nats.Option {
	if k == nil {
		return func(*nats.Options) error { return nil }
	}
	public, err := k.pair.PublicKey()
	if err != nil {
		return func(*nats.Options) error { return err }
	}
	return nats.Nkey(public, k.pair.Sign)
}

// tellURL leaves word of where the server listens; forgetURL takes it back.
func (s *store) tellURL(url string) error {
	return writeFile(filepath.Join(s.dir, urlName), []byte(url+"\n"))
}

func (s *store) forgetURL() { _ = os.Remove(filepath.Join(s.dir, urlName)) }
