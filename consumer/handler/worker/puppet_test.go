package worker

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

// The test binary is the worker too: WORKER_TEST says what it does at its start, and each message what it does then.
func TestMain(m *testing.M) {
	if begin, ok := os.LookupEnv("WORKER_TEST"); ok {
		puppet(begin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, natstest.Leaks()...)
}

// puppet does what it is told.
func puppet(begin string) {
	if up := os.Getenv("WORKER_UP"); up != "" {
		// Held as long as this process and those that it starts live.
		f, err := os.OpenFile(up, os.O_WRONLY, 0)
		if err != nil {
			panic(err)
		}
		fd, err := syscall.Dup(int(f.Fd())) // inherited, unlike what Go opens
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(os.NewFile(uintptr(fd), up), "up\n")
	}
	for _, what := range strings.Fields(begin) {
		act(what, "")
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     string
			Cancel string
			Data   string
			Base64 []byte `json:"data_base64"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		if m.Cancel != "" {
			if os.Getenv("WORKER_HEEDS_CANCEL") != "" {
				fmt.Printf(`{"id":%q,"verdict":"%s"}`+"\n", m.Cancel, os.Getenv("WORKER_HEEDS_CANCEL"))
			}
			continue
		}
		for what := range strings.SplitSeq(m.Data, ";") {
			act(what, m.ID)
		}
	}
}

func act(what, id string) {
	name, arg, _ := strings.Cut(what, ":")
	switch name {
	case "ready":
		fmt.Println(`{"ready":true}`)
	case "ack", "":
		fmt.Printf(`{"id":%q,"verdict":"ack"}`+"\n", id)
	case "say": // a line in base64
		line, err := base64.StdEncoding.DecodeString(arg)
		if err != nil {
			panic(err)
		}
		fmt.Println(strings.ReplaceAll(string(line), "ID", id))
	case "exit":
		code, _ := strconv.Atoi(arg)
		fmt.Fprintln(os.Stderr, "leaving with", code)
		os.Exit(code)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		select {}
	case "sleep":
		d, _ := time.ParseDuration(arg)
		time.Sleep(d)
	case "touch":
		if err := os.WriteFile(arg, nil, 0o600); err != nil {
			panic(err)
		}
	case "endless": // a line without an end
		block := strings.Repeat("x", 1<<16)
		for range 100 << 20 >> 16 {
			fmt.Print(block)
		}
		fmt.Println()
	case "stderr":
		n, _ := strconv.Atoi(arg)
		w := bufio.NewWriter(os.Stderr)
		for i := range n {
			fmt.Fprintf(w, "line %d \x1b[31m of many\n", i)
		}
		w.Flush()
	case "boom": // dies as Node.js does: the error first, then the stack
		fmt.Fprintf(os.Stderr, "/app/worker.js:%s\n    throw new Error('boom')\n    ^\n\nError: boom\n", arg)
		for i := range 60 {
			fmt.Fprintf(os.Stderr, "    at Module.step%d (node:internal/modules/cjs/loader:%d:14)\n", i, 1000+i)
		}
		fmt.Fprintln(os.Stderr, "\nNode.js v22.11.0")
		os.Exit(1)
	case "ignore-term":
		signal.Ignore(syscall.SIGTERM)
	case "ignore-eof":
		select {}
	case "close-stdout":
		os.Stdout.Close()
	case "close-stdin":
		os.Stdin.Close()
	case "fork": // a child that ignores SIGTERM and holds everything
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			panic(err)
		}
	case "env":
		text, _ := json.Marshal(strings.Join(os.Environ(), "\n"))
		fmt.Printf(`{"id":%q,"verdict":"retry","error":%s}`+"\n", id, text)
	default:
		panic(what)
	}
}

// say is an act that writes a line. ID in it becomes the message's id.
func say(line string) string { return "say:" + base64.StdEncoding.EncodeToString([]byte(line)) }

// config is the test binary as a worker.
func config(t testing.TB, begin string) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Command: []string{self}, Dir: t.TempDir(), Processes: 1, Env: map[string]string{
		"WORKER_TEST": begin, "GORACE": "atexit_sleep_ms=0", // otherwise an exit takes a second
		"GOCOVERDIR": t.TempDir(), // otherwise one of -cover says on stderr that it is missing
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
