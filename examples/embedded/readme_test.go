package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// What the README and docs/go.md show of Go is in these files, which are compiled and run.
func TestReadme_showsWhatRuns(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	files := read("main.go") + read("main_test.go")
	for page, want := range map[string]int{"../../README.md": 1, "../../docs/go.md": 2} {
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(page), -1)
		if len(blocks) != want {
			t.Errorf("%s has %d blocks of Go, want %d", page, len(blocks), want)
		}
		for _, b := range blocks {
			if !strings.Contains(files, b[1]) {
				t.Errorf("this is in %s, and not in main.go or main_test.go:\n%s", page, b[1])
			}
		}
	}
}
