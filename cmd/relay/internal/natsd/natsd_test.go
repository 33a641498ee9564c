package natsd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

const patience = 20 * time.Second

// TestMain is also the other process that some tests need: one that holds a store, one whose disk is full.
func TestMain(m *testing.M) {
	switch dir := os.Getenv("NATSD_TEST_STORE"); os.Getenv("NATSD_TEST_CHILD") {
	case "hold":
		hold(dir)
	case "full":
		full(dir)
	default:
		goleak.VerifyTestMain(m, natstest.Leaks()...)
	}
}

func child(t *testing.T, what, dir string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "NATSD_TEST_CHILD="+what, "NATSD_TEST_STORE="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// js connects through memory. The connection must be closed before the server is.
func connect(t testing.TB, s *Server) jetstream.JetStream {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect("", nats.InProcessServer(s.InProcess()), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// fill makes a stream S with ten messages and a durable C that acked four, and ends the server.
func fill(t *testing.T, dir string) {
	t.Helper()
	t.Run("fill", func(t *testing.T) {
		s := start(t, Config{StoreDir: dir})
		js := connect(t, s)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		c, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "C", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := js.Publish(t.Context(), "s", []byte("body")); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := c.Fetch(4)
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			if err := m.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestStart_listensOnLoopbackOnly(t *testing.T) {
	s := start(t, Config{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Monitor: "127.0.0.1:0"})
	nc, err := nats.Connect(s.ClientURL(), s.Option())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	resp, err := http.Get("http://" + s.MonitorAddr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()

	silent := start(t, Config{StoreDir: t.TempDir()})
	if silent.ClientURL() != "" || silent.MonitorAddr() != "" || silent.srv.Addr() != nil {
		t.Fatalf("listens on %q and %q without being asked", silent.ClientURL(), silent.MonitorAddr())
	}
	connect(t, silent)
}

func TestStart_refusesConfig(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
		is   error
	}{
		"every interface":    {Config{Listen: "0.0.0.0:4222"}, "nats.embedded.listen", ErrNotLoopback},
		"no host":            {Config{Listen: ":4222"}, "nats.embedded.listen", ErrNotLoopback},
		"a name":             {Config{Listen: "example.test:4222"}, "nats.embedded.listen", ErrNotLoopback},
		"no port":            {Config{Listen: "127.0.0.1"}, "host:port", nil},
		"port out of range":  {Config{Listen: "127.0.0.1:65536"}, "65535", nil},
		"monitor everywhere": {Config{Monitor: "[::]:8222"}, "nats.embedded.monitor", ErrNotLoopback},
		"sync":               {Config{Sync: "sometimes"}, "nats.embedded.sync", nil},
		"sync of zero":       {Config{Sync: "0s"}, "nats.embedded.sync", nil},
		"no directory":       {Config{}, "nats.embedded.store_dir", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "no directory" {
				c.cfg.StoreDir = t.TempDir()
			}
			_, err := Start(t.Context(), c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || (c.is != nil && !errors.Is(err, c.is)) {
				t.Fatalf("error %v, want one with %q that is %v", err, c.want, c.is)
			}
		})
	}
}

func TestStart_portTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	cfg := Config{StoreDir: t.TempDir(), Listen: addr}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), addr) {
		t.Fatalf("error %v, want ErrPortTaken with %s", err, addr)
	}
	cfg.AnyPortIfTaken = true
	s := start(t, cfg)
	if s.ClientURL() == "" || s.ClientURL() == "nats://"+addr {
		t.Fatalf("listens on %q", s.ClientURL())
	}
}

func TestStart_storeIsKeptAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fill(t, dir)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{StoreDir: link, Sync: "always"})
	c, err := connect(t, s).Consumer(t.Context(), "S", "C")
	if err != nil {
		t.Fatal(err)
	}
	if i := c.CachedInfo(); i.NumPending != 6 || i.AckFloor.Stream != 4 {
		t.Fatalf("after the restart %+v", i)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Fatalf("mode %v, %v", fi.Mode(), err)
	}
	if err := s.Healthz(); err != nil {
		t.Fatal(err)
	}
}

func TestStart_refusesDirectory(t *testing.T) {
	for name, prepare := range map[string]func(dir string) (string, string){
		"a file": func(dir string) (string, string) {
			return put(dir, "f", ""), "not a directory"
		},
		"below a file": func(dir string) (string, string) {
			return filepath.Join(put(dir, "f", ""), "sub"), "not a directory"
		},
		"of somebody else": func(dir string) (string, string) {
			if os.Geteuid() != 0 {
				return "/", "belongs to user 0" // root's, as far as anybody else is concerned
			}
			if err := os.Chown(dir, 12345, 12345); err != nil {
				panic(err)
			}
			return dir, "belongs to user 12345"
		},
		"a planted lock": func(dir string) (string, string) {
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, lockName)); err != nil {
				panic(err)
			}
			return dir, lockName
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := prepare(t.TempDir())
			_, err := Start(t.Context(), Config{StoreDir: dir})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("error %v, want %q", err, want)
			}
		})
	}
}

func put(dir, name, text string) string {
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		panic(err)
	}
	return name
}

// The server skips what it cannot read, and relay would make it afresh: confirmed messages and acks would be gone.
func TestStart_neverAFreshStoreOverAnUnreadableOne(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(root string) // of $G
		want   []string
	}{
		"streams is a file": {func(root string) { replace(root + "/streams") }, []string{"streams is not a directory"}},
		"stream is a file":  {func(root string) { replace(root + "/streams/S") }, []string{"S/obs: not a directory"}},
		"definition cut":    {func(root string) { put(root, "streams/S/meta.inf", "{") }, []string{"stream S was not recovered", "checksums do not match"}},
		"definition gone":   {func(root string) { remove(root + "/streams/S/meta.inf") }, []string{"stream S was not recovered", "Missing stream metafile"}},
		"checksum gone":     {func(root string) { remove(root + "/streams/S/meta.sum") }, []string{"stream S was not recovered"}},
		"definition is a directory": {func(root string) {
			remove(root + "/streams/S/meta.inf")
			os.Mkdir(root+"/streams/S/meta.inf", 0o700)
		}, []string{"meta.inf is not a regular file"}},
		"messages are a file": {func(root string) { replace(root + "/streams/S/msgs") }, []string{"msgs is not a directory"}},
		"block is a directory": {func(root string) {
			remove(root + "/streams/S/msgs/index.db")
			remove(root + "/streams/S/msgs/1.blk")
			os.Mkdir(root+"/streams/S/msgs/1.blk", 0o700)
		}, []string{"1.blk is a directory"}},
		"block is a pipe": {func(root string) {
			remove(root + "/streams/S/msgs/1.blk")
			syscall.Mkfifo(root+"/streams/S/msgs/1.blk", 0o600)
		}, []string{"1.blk is neither"}},
		"consumer definition cut": {func(root string) { put(root, "streams/S/obs/C/meta.inf", "{") }, []string{"consumer C of stream S was not recovered", "Error unmarshalling consumer metafile"}},
		"consumer state garbage":  {func(root string) { put(root, "streams/S/obs/C/o.dat", strings.Repeat("garbage ", 6)) }, []string{"consumer C of stream S was not recovered", "corrupt state file"}},
		"newer consumer": {func(root string) {
			b, _ := os.ReadFile(root + "/streams/S/obs/C/meta.inf")
			put(root, "streams/S/obs/C/meta.inf", strings.Replace(string(b), "{", `{"from_the_future":1,`, 1))
		}, []string{"stream S", "from_the_future"}},
		"another account": {func(root string) { os.MkdirAll(root+"/../ACME/streams/T", 0o700) }, []string{"ACME belongs to an account"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fill(t, dir)
			root := filepath.Join(dir, server.JetStreamStoreDir, account)
			c.damage(root)
			before := files(t, root)
			_, err := Start(t.Context(), Config{StoreDir: dir})
			if err == nil {
				t.Fatal("started")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of more than one line: %q", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if after := files(t, root); before != after {
				t.Errorf("files before:\n%safter:\n%s", before, after)
			}
			// It must let go of the lock, or a repair would not help before a restart of the process.
			if st, err := openStore(dir); err != nil {
				t.Error(err)
			} else {
				st.close()
			}
		})
	}
}

func replace(path string) {
	if err := os.RemoveAll(path); err != nil {
		panic(err)
	}
	put(filepath.Dir(path), filepath.Base(path), "")
}

func remove(path string) {
	if err := os.Remove(path); err != nil {
		panic(err)
	}
}

// files lists blocks and consumer states: what holds messages and acks.
func files(t *testing.T, root string) string {
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && (filepath.Ext(path) == ".blk" || d.Name() == "o.dat") {
			body, _ := os.ReadFile(path)
			fmt.Fprintf(&b, "%s %d bytes\n", path, len(body))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A server killed while it made a stream or a consumer leaves half of it. That must not keep relay down.
func TestStart_halfMadeIsNoFault(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	streams := filepath.Join(dir, server.JetStreamStoreDir, account, "streams")
	for _, d := range []string{"HALF/msgs", "HALF/obs", "S/obs/HALF", ".GONE/msgs"} {
		if err := os.MkdirAll(filepath.Join(streams, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	put(streams, "HALF/meta.inf", `{"name"`)
	put(streams, "HALF/msgs/1.blk", "")
	put(streams, "S/obs/HALF/meta.inf", `{"na`)
	js := connect(t, start(t, Config{StoreDir: dir}))
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HALF", Subjects: []string{"half"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "HALF", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
}

func TestStart_warningsOfTheStartAreErrors(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	remove(filepath.Join(dir, server.JetStreamStoreDir, account, "streams", "S", "msgs", "1.blk"))
	var buf bytes.Buffer
	s := start(t, Config{StoreDir: dir, Logger: slog.New(slog.NewTextHandler(&buf, nil))})
	s.Shutdown()
	if !strings.Contains(buf.String(), "level=ERROR") || !strings.Contains(buf.String(), "could not locate msg block 1") {
		t.Fatalf("log: %s", buf.String())
	}
}

func TestStart_cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Config{StoreDir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
}

func TestStart_oneProcessPerStore(t *testing.T) {
	dir := t.TempDir()
	cmd := child(t, "hold", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	_, err = Start(t.Context(), Config{StoreDir: dir})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process "+strconv.Itoa(cmd.Process.Pid)) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("error %v, want ErrInUse with pid %d and %s", err, cmd.Process.Pid, dir)
	}
	cmd.Process.Kill()
	cmd.Wait()
	st, err := connect(t, start(t, Config{StoreDir: dir})).Stream(t.Context(), "S")
	if err != nil || st.CachedInfo().State.Msgs != 1 {
		t.Fatalf("after a kill: %v, %v", st, err)
	}
}

func hold(dir string) {
	s, err := Start(context.Background(), Config{StoreDir: dir})
	if err != nil {
		panic(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s.InProcess()))
	if err != nil {
		panic(err)
	}
	js, _ := jetstream.New(nc)
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		panic(err)
	}
	if _, err := js.Publish(context.Background(), "s", nil); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	select {}
}

func TestServer_endsWhenItsStoreIsGone(t *testing.T) {
	for name, rm := range map[string]func(dir string){
		"all of it":   func(dir string) { os.RemoveAll(dir) },
		"JetStream's": func(dir string) { os.RemoveAll(filepath.Join(dir, server.JetStreamStoreDir)) },
		"replaced": func(dir string) {
			os.Rename(dir, dir+".old")
			os.MkdirAll(filepath.Join(dir, server.JetStreamStoreDir), 0o700)
			put(dir, lockName, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			s := start(t, Config{StoreDir: dir})
			rm(dir)
			if err := s.Healthz(); err == nil {
				t.Error("healthy without a store")
			}
			select {
			case <-s.Done():
			case <-time.After(patience):
				t.Fatal("still running")
			}
			if err := s.Err(); !errors.Is(err, ErrGone) {
				t.Fatalf("error %v", err)
			}
			if err := s.Healthz(); !errors.Is(err, ErrGone) {
				t.Fatalf("health after the end: %v", err)
			}
			s.Shutdown() // does nothing, and does not hang
		})
	}
}

func TestServer_doneAndErr(t *testing.T) {
	s := start(t, Config{StoreDir: t.TempDir()})
	s.Shutdown()
	<-s.Done()
	if s.Err() != nil || s.Healthz() == nil {
		t.Fatalf("after Shutdown: err %v, health %v", s.Err(), s.Healthz())
	}
	s = start(t, Config{StoreDir: t.TempDir()})
	s.srv.Shutdown() // not asked for
	<-s.Done()
	if s.Err() == nil {
		t.Fatal("no error")
	}
}

func TestServer_unhealthyWithoutJetStream(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Config{StoreDir: dir})
	if err := s.srv.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	if err := s.Healthz(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Fatalf("health %v, want one that names %s", err, dir)
	}
	select {
	case <-s.Done():
		t.Fatal("ended") // the operator may free the disk and wants to look first
	default:
	}
}

func TestStoreLimit(t *testing.T) {
	limit := func(used uint64, most int64) *server.JSInfo {
		return &server.JSInfo{JetStreamStats: server.JetStreamStats{Store: used}, Config: server.JetStreamConfig{MaxStore: most}}
	}
	if err := storeLimit(limit(10, 10)); err == nil || !strings.Contains(err.Error(), "10 of at most 10 bytes") {
		t.Fatal(err)
	}
	if err := storeLimit(limit(9, 10)); err != nil {
		t.Fatal(err)
	}
}

func TestServer_unhealthyWhenItCannotWrite(t *testing.T) {
	dir := t.TempDir()
	out, err := child(t, "full", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	if s := string(out); !strings.Contains(s, "write error") || !strings.Contains(s, "bytes free on the disk of "+dir) {
		t.Fatalf("health: %s", s)
	}
}

// full limits the size of this process's files, which is as near to a full disk as one gets without being root.
func full(dir string) {
	signal.Ignore(syscall.SIGXFSZ)
	s, err := Start(context.Background(), Config{StoreDir: dir})
	if err != nil {
		panic(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s.InProcess()))
	if err != nil {
		panic(err)
	}
	js, _ := jetstream.New(nc)
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		panic(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 256 << 10, Max: 256 << 10}); err != nil {
		panic(err)
	}
	for err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = js.Publish(ctx, "s", make([]byte, 64<<10))
		cancel()
	}
	fmt.Println(s.Healthz())
}
