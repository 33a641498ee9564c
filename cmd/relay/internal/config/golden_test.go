package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what Load says into testdata/config")

const (
	testdata = "../../../../testdata/config"
	dashes   = "-----\n"
)

// Each file holds a configuration, a line of dashes, and the faults. Comments "# env: NAME=value" and "# set: key=value"
// are the other layers. The files that configurations name are in the directory files.
func TestLoad_golden(t *testing.T) {
	dir, err := filepath.Abs(testdata)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	for _, file := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, want, ok := strings.Cut(string(data), dashes)
			if !ok && !*update {
				t.Fatal("no line of dashes")
			}
			opts := Options{File: "relay.yaml"}
			for line := range strings.Lines(in) {
				if v, ok := strings.CutPrefix(line, "# env: "); ok {
					opts.Env = append(opts.Env, strings.TrimSpace(v))
				}
				if v, ok := strings.CutPrefix(line, "# set: "); ok {
					opts.Set = append(opts.Set, strings.TrimSpace(v))
				}
			}
			t.Chdir(t.TempDir())
			if err := os.CopyFS("files", os.DirFS(filepath.Join(dir, "files"))); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(opts.File, []byte(in), 0o600); err != nil {
				t.Fatal(err)
			}
			got := "no faults\n"
			if _, err := Load(opts); err != nil {
				if _, ok := err.(Faults); !ok {
					t.Fatalf("not a list of faults: %v", err)
				}
				got = err.Error() + "\n"
			}
			if strings.Contains(got, "canary") {
				t.Errorf("a secret shows:\n%s", got)
			}
			if *update {
				if err := os.WriteFile(file, []byte(in+dashes+got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
