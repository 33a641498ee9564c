// Package upgrade tests that a release takes over from the one before, and that one from it.
package upgrade

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Last is the commit of v0.2.0, the last release. It stands for the tag, which an operator makes.
const Last = "c7a1d7c"

// ErrNoHistory says that there is no earlier program to build.
var ErrNoHistory = errors.New("this is no git checkout: the release before is in its history")

// Build builds the program of a commit into dir, from the checkout at root; empty: of the checkout itself.
func Build(root, commit, dir string) (program string, err error) {
	source := root
	if commit != "" {
		if _, err := os.Stat(filepath.Join(root, ".git")); err != nil && os.Getenv("CI") == "" {
			return "", ErrNoHistory
		}
		if source, err = sourceOf(root, commit); err != nil {
			return "", fmt.Errorf("the source of %s: %w", commit, err)
		}
	}
	program = filepath.Join(dir, "relay"+commit)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./cmd/relay") // with the flags of the other builds: the libraries are in the cache then
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", commit, err, out)
	}
	return program, nil
}

// sourceOf unpacks the source of a commit. It stays in the user's directory for caches: the compiler's cache goes by the place of a package, so that the next
// build of the commit takes seconds, also in the next process.
func sourceOf(root, commit string) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "relay-tests", commit)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	archive := exec.Command("git", "-C", root, "archive", commit)
	archive.Stderr = os.Stderr
	data, err := archive.Output()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "unpacking-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if err := unpack(data, filepath.Join(part, "all")); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(part, "all"), dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // no other process was quicker
			return "", err
		}
	}
	return dir, nil
}

func unpack(data []byte, dir string) error {
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
					err = os.WriteFile(path, content, 0o644)
				}
			}
		}
		if err != nil {
			return err
		}
	}
}
