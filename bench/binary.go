package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// program is `relay run` with a YAML file.
type program struct {
	*process
	dir   string
	admin string
}

// startBinary runs the program at path for the spec.
func startBinary(ctx context.Context, path string, s *spec) (b *program, err error) {
	b = &program{}
	if b.dir, err = os.MkdirTemp("", "relay-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(b.dir)
		}
	}()
	if b.admin, err = freeAddress(); err != nil {
		return nil, err
	}
	if err := b.configure(s); err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil { // it may be relative, and starts elsewhere
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "run", "-c", b.file())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Dir = b.dir
	b.process, err = start(cmd)
	return b, err
}

func (b *program) file() string { return filepath.Join(b.dir, "relay.yaml") }

// configure writes the program's file.
func (b *program) configure(s *spec) error {
	text, err := configOf(s, b.admin)
	if err != nil {
		return err
	}
	return os.WriteFile(b.file(), text, 0o600)
}

// configOf is the file that a user would write for the job.
func configOf(s *spec, admin string) ([]byte, error) {
	type object = map[string]any
	var handler any
	switch s.Handler.Kind {
	case "discard":
		handler = "discard"
	case "http":
		to := object{"url": s.Handler.URL}
		if s.Handler.Signed {
			to["sign"] = object{"keys": []any{object{"file": s.Handler.Key}}}
		}
		if s.Handler.H2 {
			to["tls"] = object{"insecure_skip_verify": true}
		}
		handler = object{"http": to}
	case "exec":
		handler = object{"exec": object{"command": s.Handler.Command}}
	case "worker":
		handler = object{"worker": object{"command": s.Handler.Command, "processes": workerProcesses}}
	case "request":
		handler = object{"request": object{"subject": serviceSubject}}
	default:
		return nil, fmt.Errorf("relay's file has no handler %q", s.Handler.Kind)
	}
	var routes []any
	durables, _ := s.durables()
	for i, subjects := range s.Routes {
		rt := object{
			"name": fmt.Sprintf("%s-%d", s.Run, i), "subjects": subjects, "stream": s.Stream, "durable": durables[i%len(durables)], "start": "all",
			"concurrency": s.Concurrency, "handler": handler,
		}
		if s.Batch > 0 {
			rt["batch"] = object{"size": s.Batch}
		}
		routes = append(routes, rt)
	}
	return yaml.Marshal(object{
		"nats": object{"url": s.URL}, "admin": object{"listen": admin}, "log": object{"level": "warn"}, "routes": routes,
	})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// result is what relay's metrics say.
func (b *program) result(ctx context.Context) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.admin+"/metrics", nil)
	if err != nil {
		return r, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	scan := bufio.NewScanner(resp.Body)
	for scan.Scan() {
		if rest, ok := strings.CutPrefix(scan.Text(), "go_memstats_mallocs_total "); ok {
			f, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				return r, err
			}
			r.Mallocs = uint64(f)
		}
	}
	return r, scan.Err()
}

func (b *program) end() {
	b.stop(syscall.SIGTERM)
	_ = os.RemoveAll(b.dir)
}
