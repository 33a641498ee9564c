package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// httpHandler answers POST /h/<instance of relay>. POST /mode/<mode> makes it ok, slow, hang, dead or down for
// everybody. /count is how many requests came.
type httpHandler struct {
	book *ledger.Writer
	mode atomic.Pointer[string]
	came atomic.Int64
	seen sync.Map // ids of scripts that do something once
}

func runHTTP(args []string) error {
	fs := flag.NewFlagSet("http", flag.ExitOnError)
	file := fs.String("ledger", "", "ledger `file`")
	listen := fs.String("listen", "127.0.0.1:0", "`address`")
	_ = fs.Parse(args)
	book, err := ledger.Open(*file)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr()) // the harness reads it
	h := &httpHandler{book: book}
	ok := "ok"
	h.mode.Store(&ok)
	mux := http.NewServeMux()
	mux.HandleFunc("/h/{instance}", h.message)
	mux.HandleFunc("/mode/{mode}", func(w http.ResponseWriter, r *http.Request) {
		mode := r.PathValue("mode")
		h.mode.Store(&mode)
	})
	mux.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, h.came.Load()) })
	return http.Serve(l, mux)
}

func (h *httpHandler) message(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // relay was cut while it sent: no handler has started
	}
	h.came.Add(1)
	mode := *h.mode.Load()
	if mode == "down" {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	attempt, _ := strconv.Atoi(r.Header.Get("Relay-Attempt"))
	instance := r.PathValue("instance")
	fence, _ := strconv.ParseUint(r.Header.Get("Relay-Fence"), 10, 64)
	s := ledger.Parse(body)
	run := h.book.Start(s.ID, attempt, instance, ledger.Seq(r.Header.Get("Relay-Id")), fence)
	if s.Once {
		if _, again := h.seen.LoadOrStore(s.ID, true); again {
			s = s.Spent()
		}
	}
	do, sleep := s.For(attempt, instance)
	if s.ID == "-" && instance == "dead" {
		do = "dead" // what has no script: all hopeless
	}
	switch mode {
	case "slow":
		sleep += 300 * time.Millisecond
	case "hang", "dead":
		do = mode
	}
	if sleep > 0 {
		time.Sleep(sleep) // whatever became of relay meanwhile
	}
	status := http.StatusOK
	switch {
	case do == "fail":
		status = http.StatusInternalServerError
	case do == "dead":
		status = http.StatusUnprocessableEntity
	case do == "hang":
		<-r.Context().Done()
		return
	case do == "cut":
		h.book.Failed(s.ID, run)
		panic(http.ErrAbortHandler)
	case strings.HasPrefix(do, "status"):
		status, _ = strconv.Atoi(do[len("status"):])
	}
	if status < 300 {
		h.book.Succeeded(s.ID, run)
	} else {
		h.book.Failed(s.ID, run)
	}
	w.WriteHeader(status)
	if status >= 300 {
		fmt.Fprintln(w, "the script says", do)
	}
}

// runExec is one message: the script on stdin. It may leave children behind, and ignore SIGTERM.
func runExec(args []string) error {
	fs := flag.NewFlagSet("exec", flag.ExitOnError)
	file := fs.String("ledger", "", "ledger `file`")
	instance := fs.String("instance", "-", "`name` of the relay")
	orphan := fs.Bool("orphan", false, "only sit there")
	_ = fs.Parse(args)
	if *orphan {
		ignoreTERM()
		time.Sleep(time.Minute)
		return nil
	}
	book, err := ledger.Open(*file)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	attempt, _ := strconv.Atoi(os.Getenv("RELAY_ATTEMPT"))
	fence, _ := strconv.ParseUint(os.Getenv("RELAY_FENCE"), 10, 64)
	s := ledger.Parse(body)
	run := book.Start(s.ID, attempt, *instance, ledger.Seq(os.Getenv("RELAY_ID")), fence)
	do, sleep := s.For(attempt, *instance)
	switch do {
	case "hang":
		ignoreTERM()
		time.Sleep(time.Minute)
	case "daemon": // a child that ignores TERM and holds stdout
		if err := spawnOrphan(); err != nil {
			return err
		}
	case "setsid": // one that left the process group
		if err := spawnOrphanInSession(); err != nil {
			return err
		}
		ignoreTERM()
		time.Sleep(time.Minute)
	}
	time.Sleep(sleep)
	if do == "fail" {
		book.Failed(s.ID, run)
		os.Exit(1)
	}
	book.Succeeded(s.ID, run)
	return nil
}
