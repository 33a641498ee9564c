package worker

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/process"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

const (
	maxLogged = 4 << 10 // of a line; the rest of it is not logged
	// A process may log maxLines lines in each linesPer. What is more is counted.
	maxLines = 100
	linesPer = 10 * time.Second
)

// stderr brings what a process writes to stderr to the log, line by line, and keeps both ends of what it wrote since it had nothing in
// hand: what it said at its start, or of messages that are done, says nothing of its death.
type stderr struct {
	log   *slog.Logger
	turns *atomic.Int64 // how often the process got a message while it had none
	seen  int64         // of turns, by Write
	ends  snippet.Ends
	done  chan struct{} // closed at the end
	began time.Time     // of the period
	lines int           // in it
}

func newStderr(log *slog.Logger, turns *atomic.Int64) *stderr {
	return &stderr{log: log, turns: turns, done: make(chan struct{})}
}

// Write keeps what was read.
func (s *stderr) Write(b []byte) (int, error) {
	if n := s.turns.Load(); n != s.seen {
		s.seen = n
		s.ends.Reset()
	}
	return s.ends.Write(b)
}

// copy reads to the end, or to the read deadline.
func (s *stderr) copy(from io.Reader) {
	defer close(s.done)
	s.read(from)
}

// rest takes what is in the pipe of a dead process after copy has ended.
func (s *stderr) rest(pipe *os.File) {
	var left bytes.Buffer
	process.CopyRest(&left, pipe)
	s.read(&left)
}

func (s *stderr) read(from io.Reader) {
	r := bufio.NewReaderSize(io.TeeReader(from, s), maxLogged)
	cut := false // the line began before
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 && !cut {
			s.say(line)
		}
		cut = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !cut {
			s.tell()
			return
		}
	}
}

func (s *stderr) say(line []byte) {
	if now := time.Now(); now.Sub(s.began) >= linesPer {
		s.tell()
		s.began, s.lines = now, 0
	}
	if s.lines++; s.lines > maxLines {
		return
	}
	if text := snippet.Head(line, maxLogged); text != "" {
		s.log.Info("worker: " + text)
	}
}

// tell says how many lines were left out.
func (s *stderr) tell() {
	if n := s.lines - maxLines; n > 0 {
		s.log.Warn("a worker writes too much to stderr; lines were left out of the log", "lines", n, "within", linesPer)
	}
}
