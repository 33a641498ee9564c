package natsd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// account is the only one the embedded server has.
const account = "$G"

// verifyTimeout is for one answer of a server in the same process.
const verifyTimeout = 10 * time.Second

// inventory is what the disk says that JetStream should have: streams, and the consumers of each.
type inventory struct {
	root    string
	streams map[string][]string
}

// survey reads the store before JetStream does. A server that cannot read a directory takes it for empty, and one that
// cannot read a stream's blocks has been seen to remove the stream; so whatever cannot be opened ends the start here,
// with nothing changed.
func (s *store) survey() (*inventory, error) {
	root := jetstreamDir(s.dir)
	inv := &inventory{root: filepath.Join(root, account, "streams"), streams: make(map[string][]string)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path == root && errors.Is(err, fs.ErrNotExist):
			return nil // a new store
		case err != nil:
			return err
		}
		return readable(path, d)
	})
	if err != nil {
		return nil, fmt.Errorf("JetStream's files cannot be read: %w", err)
	}
	accounts, err := names(root)
	if err != nil {
		return nil, err
	}
	for _, a := range accounts {
		if a != account {
			return nil, fmt.Errorf("%s belongs to an account that the embedded server does not have: the store was made by another NATS server", filepath.Join(root, a))
		}
	}
	streams, err := names(inv.root)
	if err != nil {
		return nil, err
	}
	for _, name := range streams {
		dir := filepath.Join(inv.root, name)
		consumers, err := names(filepath.Join(dir, "obs"))
		if err != nil {
			return nil, err
		}
		consumers = slices.DeleteFunc(consumers, func(c string) bool { return ephemeral(filepath.Join(dir, "obs", c)) })
		// The server died while it made the stream: nothing can have been stored yet.
		if len(consumers) == 0 && !complete(dir) && noMessages(filepath.Join(dir, "msgs")) {
			continue
		}
		inv.streams[name] = consumers
	}
	return inv, nil
}

// readable opens what is a file and what must be a directory. A name that JetStream gives to a directory may not be
// another kind of file, and the reverse: it skips such a stream, or removes it.
func readable(path string, d fs.DirEntry) error {
	switch d.Name() {
	case account, "streams", "msgs", "obs", server.JetStreamStoreDir:
		if !d.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
	case server.JetStreamMetaFile, server.JetStreamMetaFileSum:
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
	}
	if d.IsDir() {
		if filepath.Ext(path) == ".blk" {
			return fmt.Errorf("%s is a directory", path)
		}
		return nil // WalkDir reads it, and reports an error when it cannot
	}
	if !d.Type().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// names lists a directory that may be missing. A leading dot marks what the server is about to delete.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// complete tells whether both files of a stream's or a consumer's definition were written. The sum comes last.
func complete(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, server.JetStreamMetaFileSum))
	return err == nil
}

func noMessages(dir string) bool {
	blocks, _ := filepath.Glob(filepath.Join(dir, "*.blk"))
	return !slices.ContainsFunc(blocks, func(b string) bool {
		fi, err := os.Lstat(b)
		return err != nil || fi.Size() > 0
	})
}

// ephemeral tells whether nothing is lost with a consumer: it was not durable, or the server died while it made it, or
// removed it. What cannot be parsed counts as durable.
func ephemeral(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, "o.dat")); errors.Is(err, fs.ErrNotExist) && !complete(dir) {
		return true
	}
	var meta struct {
		Name    string `json:"name"`
		Durable string `json:"durable_name"`
	}
	b, err := os.ReadFile(filepath.Join(dir, server.JetStreamMetaFile))
	return err == nil && json.Unmarshal(b, &meta) == nil && meta.Name+meta.Durable != "" && meta.Durable == ""
}

// verify asks the server for all that the survey found. It reports everything that is missing, with the warnings of the
// start, which hold the reasons.
func (inv *inventory) verify(ctx context.Context, srv *server.Server, k *key, warnings []string) error {
	if len(inv.streams) == 0 {
		return nil
	}
	closed := make(chan struct{})
	nc, err := nats.Connect("", nats.InProcessServer(srv), k.option(), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	defer func() { nc.Close(); <-closed }()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(verifyTimeout))
	if err != nil {
		return err
	}
	var faults []string // one line in the end: it is the last one of a log
	for name, consumers := range inv.streams {
		dir := filepath.Join(inv.root, name)
		stream, err := js.Stream(ctx, name)
		if err != nil {
			faults = append(faults, fmt.Sprintf("stream %s was not recovered from %s: %v", name, dir, err))
			continue
		}
		for _, c := range consumers {
			if _, err := stream.Consumer(ctx, c); err != nil {
				faults = append(faults, fmt.Sprintf("consumer %s of stream %s was not recovered from %s: %v", c, name, filepath.Join(dir, "obs", c), err))
			}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	faults = append(faults, warnings...)
	return fmt.Errorf("%s; restore the directory from a backup, or move it away to start with an empty store", strings.Join(faults, "; "))
}
