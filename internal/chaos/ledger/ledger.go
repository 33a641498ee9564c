// Package ledger is the truth that the harness keeps outside relay: what a message asks of its handler ([Script]), and
// what handlers really did ([Writer], [Read]).
//
// A ledger is a file of lines, written with O_APPEND, one write for each, by one handler process or several:
//
//	start <id> <attempt> <instance> <unix ns> <run> <sequence>
//	end   <id> ok|fail   <unix ns> <run>
//
// A start without an end is a handler that was cut: its process died, or it hangs. The id is that of the script; - when
// the body is none, and then the sequence in the source stream tells which message it is.
package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Script is the body of a message: it tells its handler what to do, so that handlers need no state.
type Script struct {
	ID string `json:"id"`
	// Do is what happens: ok (default), fail, dead, hang, or one of the handler's own (panic, exit, …).
	Do string `json:"do,omitempty"`
	// Until restricts Do to attempts up to this one; later ones are ok. Zero means always.
	Until int `json:"until,omitempty"`
	// On restricts Do to one instance of relay; the others are ok.
	On string `json:"on,omitempty"`
	// Once restricts Do to the first start of the message in this handler process.
	Once bool `json:"once,omitempty"`
	// Sleep is how long the handler takes, SleepOK how long when it is ok only because Do is restricted. Milliseconds.
	Sleep   int `json:"sleep,omitempty"`
	SleepOK int `json:"sleep_ok,omitempty"`
	// Pad makes the body larger. It comes behind the script, and Parse leaves it out: reading it would keep the machine busy.
	Pad string `json:"-"`
}

// Parse reads a body. One that is no script is a message that is to succeed.
func Parse(body []byte) Script {
	s := Script{}
	script, _, _ := bytes.Cut(body, []byte("\n"))
	if json.Unmarshal(script, &s) != nil || s.ID == "" || strings.ContainsAny(s.ID, " \n") {
		return Script{ID: "-"}
	}
	return s
}

// Body is what Parse reads.
func (s Script) Body() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and numbers
	}
	if s.Pad == "" {
		return b
	}
	return append(append(b, '\n'), s.Pad...)
}

// For says what to do on this attempt by this instance, and how long it takes. What is restricted to the first start is for the
// caller to find out; see Spent.
func (s Script) For(attempt int, instance string) (do string, sleep time.Duration) {
	if s.Until > 0 && attempt > s.Until || s.On != "" && instance != s.On {
		s = s.Spent()
	}
	return cmp.Or(s.Do, "ok"), time.Duration(s.Sleep) * time.Millisecond
}

// Spent is what is left of the script where Do is restricted.
func (s Script) Spent() Script {
	s.Do, s.Sleep = "ok", cmp.Or(s.SleepOK, s.Sleep)
	return s
}

// Writer appends to a ledger. Safe for concurrent use.
type Writer struct {
	f    *os.File
	runs atomic.Uint64
	pid  int
}

// Open appends to the file, which is made when missing.
func Open(file string) (*Writer, error) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{f: f, pid: os.Getpid()}, nil
}

// Start notes that a handler starts, before it does anything. The run is for End.
func (w *Writer) Start(id string, attempt int, instance string, seq, fence uint64) (run string) {
	run = strconv.Itoa(w.pid) + "-" + strconv.FormatUint(w.runs.Add(1), 10)
	w.write(fmt.Appendf(nil, "start %s %d %s %d %s %d %d\n", id, attempt, instance, time.Now().UnixNano(), run, seq, fence))
	return run
}

// Succeeded notes that it was handled, before anybody is told.
func (w *Writer) Succeeded(id, run string) { w.end(id, "ok", run) }

// Failed notes that it was not, before anybody is told.
func (w *Writer) Failed(id, run string) { w.end(id, "fail", run) }

func (w *Writer) end(id, how, run string) {
	w.write(fmt.Appendf(nil, "end %s %s %d %s\n", id, how, time.Now().UnixNano(), run))
}

func (w *Writer) write(line []byte) {
	if _, err := w.f.Write(line); err != nil {
		// Without its ledger a handler proves nothing.
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(70)
	}
}

// Seq is the sequence in a Relay-Id, <stream>~<consumer>~<seq>~<time>.
func Seq(relayID string) uint64 {
	parts := strings.Split(relayID, "~")
	if len(parts) != 4 {
		return 0
	}
	n, _ := strconv.ParseUint(parts[2], 10, 64)
	return n
}

// Run is one start of a handler.
type Run struct {
	ID, Instance string
	Attempt      int
	Seq          uint64
	Fence        uint64    // of a route of one instance; else 0
	Start, End   time.Time // End is zero when it was cut
	OK           bool
}

// Reader follows ledger files as they grow. Size may be called at any time, the rest by one goroutine.
type Reader struct {
	mu    sync.Mutex // for files
	files map[string]int64
	open  map[string]*Run
	Runs  []*Run
}

// NewReader follows these files; those that do not exist yet are waited for.
func NewReader(files ...string) *Reader {
	r := &Reader{files: make(map[string]int64), open: make(map[string]*Run)}
	r.Add(files...)
	return r
}

// Add follows more files.
func (r *Reader) Add(files ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range files {
		if _, ok := r.files[f]; !ok {
			r.files[f] = 0
		}
	}
}

// Refresh reads what was written since. A torn last line is left for the next time.
func (r *Reader) Refresh() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, offset := range r.files {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err == nil && st.Size() > offset {
			data := make([]byte, st.Size()-offset)
			_, err = f.ReadAt(data, offset)
			end := bytes.LastIndexByte(data, '\n') + 1
			if err == nil {
				err = r.parse(data[:end])
			}
			r.files[name] = offset + int64(end)
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("ledger %s: %w", name, err)
		}
	}
	return nil
}

func (r *Reader) parse(data []byte) error {
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 8 && f[0] == "start":
			attempt, _ := strconv.Atoi(f[2])
			seq, _ := strconv.ParseUint(f[6], 10, 64)
			fence, _ := strconv.ParseUint(f[7], 10, 64)
			run := &Run{ID: f[1], Attempt: attempt, Instance: f[3], Start: stamp(f[4]), Seq: seq, Fence: fence}
			r.open[f[5]] = run
			r.Runs = append(r.Runs, run)
		case len(f) == 5 && f[0] == "end":
			run := r.open[f[4]]
			if run == nil {
				return fmt.Errorf("an end without a start: %q", line)
			}
			run.End, run.OK = stamp(f[3]), f[2] == "ok"
			delete(r.open, f[4])
		default:
			return fmt.Errorf("not a line of a ledger: %q", line)
		}
	}
	return nil
}

func stamp(s string) time.Time {
	n, _ := strconv.ParseInt(s, 10, 64)
	return time.Unix(0, n)
}

// Size of all files together, to see whether anything happens.
func (r *Reader) Size() (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.files {
		if st, err := os.Stat(name); err == nil {
			n += st.Size()
		}
	}
	return n
}
