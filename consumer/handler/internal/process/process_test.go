package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

func TestReplaceable(t *testing.T) {
	if os.Geteuid() != 0 {
		// Only root can give files away, and only for root it matters.
		if _, err := New(Config{Command: []string{"/bin/sh"}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	const somebody = 54321
	type entry struct {
		path string // / at the end: a directory; -> a symbolic link
		uid  int
		gid  int
		mode uint32
	}
	root := func(path string, mode uint32) entry { return entry{path, 0, 0, mode} }
	for name, tc := range map[string]struct {
		entries []entry
		runsAs  uint32
		want    string // "" is nothing; %s is the temporary directory
	}{
		"all root's":                  {[]entry{root("a/", 0o755), root("a/p", 0o755)}, 0, ""},
		"somebody's file":             {[]entry{root("a/", 0o755), {"a/p", somebody, 0, 0o755}}, 0, "%s/a/p belongs to uid 54321"},
		"the user's own file":         {[]entry{root("a/", 0o755), {"a/p", somebody, 0, 0o755}}, somebody, ""},
		"another user's file":         {[]entry{root("a/", 0o755), {"a/p", 5, 0, 0o755}}, somebody, "%s/a/p belongs to uid 5"},
		"somebody's directory":        {[]entry{{"a/", somebody, 0, 0o755}, root("a/p", 0o755)}, 0, "%s/a belongs to uid 54321"},
		"far above":                   {[]entry{{"a/", somebody, 0, 0o755}, root("a/b/", 0o755), root("a/b/c/", 0o755), root("a/b/c/p", 0o755)}, 0, "%s/a belongs to uid 54321"},
		"a group's file":              {[]entry{root("a/", 0o755), {"a/p", 0, somebody, 0o775}}, 0, "%s/a/p may be written by the group with gid 54321"},
		"root's group":                {[]entry{root("a/", 0o775), root("a/p", 0o775)}, 0, ""},
		"everybody's directory":       {[]entry{root("a/", 0o777), root("a/p", 0o755)}, 0, "%s/a may be written by everybody"},
		"a directory like /tmp":       {[]entry{root("a/", 0o1777), root("a/p", 0o755)}, 0, ""},
		"somebody's in one like /tmp": {[]entry{root("a/", 0o1777), {"a/p", somebody, 0, 0o755}}, 0, "%s/a/p belongs to uid 54321"},
		"a link that is followed":     {[]entry{root("a/", 0o755), root("z/", 0o755), root("z/q", 0o755), root("a/p->../z/q", 0)}, 0, ""},
		"a link to somebody's":        {[]entry{root("a/", 0o755), {"z/", somebody, 0, 0o755}, root("z/q", 0o755), root("a/p->../z/q", 0)}, 0, "%s/z belongs to uid 54321"},
		"a directory by a link":       {[]entry{root("z/", 0o777), root("z/p", 0o755), root("a->z", 0)}, 0, "%s/z may be written by everybody"},
		"somebody's link":             {[]entry{root("a/", 0o1777), root("z/", 0o755), root("z/q", 0o755), {"a/p->../z/q", somebody, 0, 0}}, 0, "%s/a/p belongs to uid 54321"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range tc.entries {
				link, target, isLink := strings.Cut(e.path, "->")
				path := filepath.Join(dir, link)
				switch {
				case isLink:
					err = os.Symlink(target, path)
				case strings.HasSuffix(e.path, "/"):
					err = os.Mkdir(path, 0o755)
				default:
					err = os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755)
				}
				if err == nil {
					err = os.Lchown(path, e.uid, e.gid)
				}
				if err == nil && !isLink {
					err = syscall.Chmod(path, e.mode)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "a/p")
			if last := tc.entries[len(tc.entries)-1].path; strings.HasPrefix(last, "a/b/") {
				path = filepath.Join(dir, last)
			}
			err = replaceable(path, tc.runsAs)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if want := "command: " + strings.ReplaceAll(tc.want, "%s", dir); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

func TestStarts_failByErrno(t *testing.T) {
	for errno, broken := range map[syscall.Errno]bool{
		syscall.ENOENT: true, syscall.EACCES: true, syscall.EPERM: true, syscall.ENOTDIR: true, syscall.ENOEXEC: true, syscall.E2BIG: true,
		syscall.EAGAIN: false, syscall.ENOMEM: false, syscall.EMFILE: false, syscall.ENFILE: false, syscall.ETXTBSY: false, syscall.EIO: false,
	} {
		var s Starts
		now := time.Now()
		err := fmt.Errorf("start x: %w", &os.PathError{Op: "fork/exec", Path: "x", Err: errno})
		handlertest.Want(t, s.Failed(err, now), handlertest.NotStarted, errno.Error())
		handlertest.Want(t, s.Failed(err, now.Add(Patience-1)), handlertest.NotStarted)
		last := handlertest.NotStarted
		if broken {
			last = handlertest.FailRoute
		}
		handlertest.Want(t, s.Failed(err, now.Add(Patience)), last)
	}
}

// Nothing of what the dead wrote is lost because another still holds the pipe.
func TestCopyRest(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, n := range []int{0, 1, 60_000, 0} {
		text := bytes.Repeat([]byte("x"), n)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if CopyRest(&got, r); !bytes.Equal(got.Bytes(), text) {
			t.Errorf("%d bytes of %d", got.Len(), n)
		}
	}
	r.Close()
	CopyRest(io.Discard, r)
}

// os/exec takes a nil environment for "all of relay's own".
func TestProgram_environmentIsNeverInherited(t *testing.T) {
	for _, name := range inherited {
		t.Setenv(name, "") // so that it is restored
		os.Unsetenv(name)
	}
	t.Setenv("RELAY_NATS__PASSWORD", "canary")
	pr, err := New(Config{Command: []string{"/usr/bin/env"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pr.Start()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Out)
	if _, failed := p.Reap(ByItself); err != nil || failed != nil || len(out) > 0 {
		t.Errorf("%q, %v, %v", out, err, failed)
	}
	p.Close()
}
