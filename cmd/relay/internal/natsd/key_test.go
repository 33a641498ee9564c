package natsd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestStart_listenerAsksForTheKeyInTheStore(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Config{StoreDir: dir, Listen: "127.0.0.1:0"})
	url, file, err := Client(dir, "127.0.0.1:0")
	if err != nil || url != s.ClientURL() {
		t.Fatalf("%q, %v; it listens on %q", url, err, s.ClientURL())
	}
	dial := func(opts ...nats.Option) error {
		nc, err := nats.Connect(url, opts...)
		if err == nil {
			nc.Close()
		}
		return err
	}
	withKey := func() error {
		key, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return err
		}
		return dial(key)
	}
	if err := withKey(); err != nil {
		t.Errorf("with the key: %v", err)
	}
	for name, o := range map[string]nats.Option{"nothing": nats.Name("x"), "a user": nats.UserInfo("relay", "relay"), "a token": nats.Token("x")} {
		if err := dial(o); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("with %s: %v", name, err)
		}
	}
	for _, name := range []string{keyName, urlName} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	// The key is the same in the next life; the address is another one, or none.
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	if url, _, err := Client(dir, "127.0.0.1:4222"); err != nil || url != "nats://127.0.0.1:4222" {
		t.Errorf("while it does not run: %q, %v", url, err)
	}
	s = start(t, Config{StoreDir: dir, Listen: "127.0.0.1:0"})
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("another key, %v", err)
	}
	if url, _, _ = Client(dir, ""); url != "" {
		t.Errorf("without a listener: %q", url)
	}
	url = s.ClientURL()
	if err := withKey(); err != nil {
		t.Errorf("in the next life: %v", err)
	}
}

func TestStart_refusesAKeyThatOthersMayUse(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"other users may read this key": func(file string) error { return os.Chmod(file, 0o644) },
		"not an NKey":                   func(file string) error { return os.WriteFile(file, []byte("x\n"), 0o600) },
		"too many levels":               func(file string) error { return errors.Join(os.Rename(file, file+"2"), os.Symlink(file+"2", file)) },
	} {
		dir := t.TempDir()
		start(t, Config{StoreDir: dir, Listen: "127.0.0.1:0"}).Shutdown()
		if err := spoil(KeyFile(dir)); err != nil {
			t.Fatal(err)
		}
		if s, err := Start(t.Context(), Config{StoreDir: dir, Listen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), keyName) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Shutdown()
			}
		}
	}
}
