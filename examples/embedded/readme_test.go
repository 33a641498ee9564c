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

// What the README shows of Go is in these files, which are compiled and run.
func TestReadme_showsWhatRuns(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	files := read("main.go") + read("main_test.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read("../../README.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d blocks of Go, want the program and its test", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(files, b[1]) {
			t.Errorf("this is in the README, and not in main.go or main_test.go:\n%s", b[1])
		}
	}
}
