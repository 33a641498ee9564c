package natstest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Program names a built natsd, so that not each test process has go look whether it is built. It is an environment variable.
const Program = "RELAY_TEST_NATSD"

// Request is what natsd is asked for, a line of JSON.
type Request struct {
	ID     int
	Server int // chosen by who asks
	Do     Do
	Config string        // for DoStart and DoReload: a file of nats-server's configuration
	Within time.Duration // for DoStart
}

// Answer is that to a Request.
type Answer struct {
	ID      int
	Err     string
	Peers   int      // of a cluster, as its leader knows them; 0 of all others
	Current bool     // it has all that the leader of the cluster has
	Slow    int64    // slow consumers so far
	Users   []string // of the connections there are
}

// Do is what a server is to do.
type Do string

// What a server can be told.
const (
	DoStart  Do = "start"
	DoStop   Do = "stop"
	DoReload Do = "reload"
	DoLook   Do = "look"
)

// host is the process in which the servers of this one run.
type host struct {
	in io.Writer

	mu     sync.Mutex
	last   int // ID, and number of a server
	awaits map[int]chan Answer
	gone   error
}

// environ is that before a test changes it: go run needs HOME.
var environ = os.Environ()

// hosted begins the process at the first server of this one. It ends with this process, which holds its standard input.
var hosted = sync.OnceValues(func() (*host, error) {
	cmd := exec.Command("go", "run", "github.com/relaymq/relay/internal/natstest/natsd")
	if built := os.Getenv(Program); built != "" {
		cmd = exec.Command(built)
	}
	cmd.Env, cmd.Stderr = environ, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &host{in: in, awaits: make(map[int]chan Answer)}
	go h.read(out)
	return h, nil
})

func (h *host) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a Answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			h.end(err)
			return
		}
		h.mu.Lock()
		h.awaits[a.ID] <- a
		delete(h.awaits, a.ID)
		h.mu.Unlock()
	}
	h.end(errors.Join(errors.New("natsd has ended"), lines.Err()))
}

func (h *host) end(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = why
	for _, c := range h.awaits {
		c <- Answer{Err: why.Error()}
	}
}

// number is one for a server, or for a request.
func (h *host) number() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	return h.last
}

func (h *host) ask(r Request) (Answer, error) {
	r.ID = h.number()
	line, err := json.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	c := make(chan Answer, 1)
	h.mu.Lock()
	if err = h.gone; err == nil {
		h.awaits[r.ID] = c
		_, err = h.in.Write(append(line, '\n'))
	}
	h.mu.Unlock()
	if err != nil {
		return Answer{}, fmt.Errorf("natsd: %w", err)
	}
	a := <-c
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}
