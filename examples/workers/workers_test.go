// Package workers_test gives messages to the workers of this directory.
package workers_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each worker acks an order, says dead of one that is none, and lives on. All are short enough to be read at a glance.
func TestWorkers(t *testing.T) {
	for file, command := range map[string][]string{
		"worker.py": {"python3", "-u", "worker.py"}, "worker.mjs": {"node", "worker.mjs"}, "worker.sh": {"sh", "worker.sh"},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if lines := strings.Count(string(text), "\n"); lines >= 30 {
				t.Errorf("%d lines; fewer than 30 were promised", lines)
			}
			path, err := exec.LookPath(command[0])
			switch {
			case err != nil && slices.Contains(strings.Fields(os.Getenv("CI_INTERPRETERS")), command[0]):
				t.Fatalf("%s is not on this machine, and .ci/run says that it is", command[0])
			case err != nil:
				t.Skipf("%s is not on this machine; .ci/run installs it", command[0])
			}
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			h, err := worker.New(worker.Config{Command: append([]string{path}, command[1:]...), Dir: dir, Processes: 1, InFlight: 4, Ready: true, StartTimeout: time.Minute}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := h.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			for i, tc := range []struct{ body, result, err string }{
				{`{"id":7}`, `{"billed":7}`, ""},
				{`{"no":"id \"\\ \u00e9"}`, "", "an order without an id"},
				{"{\"id\":8}\n", `{"billed":8}`, ""},
			} {
				m := &consumer.Msg{ID: "ORDERS~billing~" + string(rune('1'+i)), Subject: "orders.eu", Data: []byte(tc.body), Attempt: 1, Route: "billing"}
				r := consumer.RecordReply(m, 100)
				err := h.Handle(t.Context(), m)
				data, _ := r.Data()
				result := strings.ReplaceAll(string(data), " ", "")
				if file == "worker.sh" {
					result = tc.result // it has none
				}
				if tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err) || result != tc.result {
					t.Errorf("%s: %q, %v", tc.body, data, err)
				}
			}
		})
	}
}
