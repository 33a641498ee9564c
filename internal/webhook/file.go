package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxFile bounds a file of keys.
const maxFile = 16 << 10

// ReadFile reads the keys of a file: one on a line, the newest first. Empty lines and lines that begin with # are left out. The error
// names the file and its line, and repeats nothing of it.
func ReadFile(path string) ([]*Key, error) {
	data, err := readCapped(path)
	if err != nil {
		return nil, err
	}
	return parseFile(path, data)
}

func parseFile(path string, data []byte) (keys []*Key, err error) {
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := ParseKey(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s holds no key", path)
	}
	return keys, nil
}

// WriteFile puts the keys into a file that only its owner may read, each private key below a comment with its public one. The file is
// replaced in one step: whoever reads it finds all keys of before or all of these.
func WriteFile(path string, keys []*Key) error {
	var text bytes.Buffer
	for _, k := range keys {
		if k.Signs() && k.Public() != "" {
			fmt.Fprintf(&text, "# %s\n", k.Public())
		}
		fmt.Fprintln(&text, k.Reveal())
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".keys-*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing is there once it has been renamed
	_, err = f.Write(text.Bytes())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func readCapped(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return data, err
}

// reread is how often files are looked at: a key that was put there is used after a second at most.
const reread = time.Second

// Keys are the keys of some files, which are read again while they are used. They are compared by what is in them: times of files lie
// where orchestrators change a symbolic link.
type Keys struct {
	paths   []string
	toSign  bool // a public key is an error
	current atomic.Pointer[[]*Key]
	next    atomic.Int64 // Unix nanoseconds

	mu   sync.Mutex // of whoever reads
	data [][]byte
	said string // what was wrong last
}

// Open reads the files, in their order, for keys to verify by.
func Open(paths ...string) (*Keys, error) { return (&Keys{paths: paths}).open() }

// OpenToSign is Open for keys to sign by: a file with a public key is an error, now and when it is read again.
func OpenToSign(paths ...string) (*Keys, error) { return (&Keys{paths: paths, toSign: true}).open() }

func (k *Keys) open() (*Keys, error) {
	if _, err := k.read(); err != nil {
		return nil, err
	}
	k.next.Store(time.Now().Add(reread).UnixNano())
	return k, nil
}

// Current returns the keys. At most once a second it reads the files first; who comes meanwhile gets those of before. What cannot be
// read, is no key, or is a public one among keys to sign by, changes nothing: the keys of before are used on, and the log says so once.
func (k *Keys) Current(now time.Time) []*Key {
	if now.UnixNano() >= k.next.Load() && k.mu.TryLock() {
		k.next.Store(now.Add(reread).UnixNano())
		changed, err := k.readLocked()
		switch text := fmt.Sprint(err); {
		case err != nil && text != k.said:
			k.said = text
			slog.Warn("a key file cannot be used: the keys of before are used on", "err", err)
		case err == nil && (changed || k.said != ""):
			k.said = ""
			slog.Info("webhook keys were read again", "keys", fmt.Sprint(*k.current.Load()))
		}
		k.mu.Unlock()
	}
	return *k.current.Load()
}

func (k *Keys) read() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.readLocked()
}

func (k *Keys) readLocked() (changed bool, err error) {
	all := make([][]byte, len(k.paths))
	for i, path := range k.paths {
		if all[i], err = readCapped(path); err != nil {
			return false, err
		}
	}
	if slices.EqualFunc(all, k.data, bytes.Equal) {
		return false, nil
	}
	var keys []*Key
	for i, path := range k.paths {
		some, err := parseFile(path, all[i])
		if err != nil {
			return false, err
		}
		if k.toSign && slices.ContainsFunc(some, func(k *Key) bool { return !k.Signs() }) {
			return false, fmt.Errorf("%s holds a public key (whpk_…), which cannot sign", path)
		}
		keys = append(keys, some...)
	}
	k.data = all
	k.current.Store(&keys)
	return true, nil
}
