package run

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/config"
)

// A file that somebody still writes is left alone until two looks have seen the same.
func TestReload_watchWaitsForTheWholeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	r := &reloader{current: &config.Config{Source: config.Source{File: file}}}
	r.digest = r.files(r.current)
	for i, look := range []struct {
		text string
		want bool
	}{{"one", false}, {"on", false}, {"one two", false}, {"one two", true}, {"one two", true}, {"one", false}, {"one", false}, {"one two", false}, {"one two", true}} {
		write(look.text)
		if got := r.settled(); got != look.want {
			t.Errorf("look %d at %q: %v", i, look.text, got)
		}
	}
}
