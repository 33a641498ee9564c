package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.yaml.in/yaml/v3"

	"github.com/relaymq/relay/internal/freeport"
	"github.com/relaymq/relay/internal/natstest"
)

// docCommand is a command of a page, with the lines that the page shows under it.
type docCommand struct {
	line string
	want []string
}

// docCommands are those in the blocks behind <!-- run --> in a page of the docs. A block ends with the first line that is not indented.
func docCommands(t *testing.T, page string) (commands []docCommand) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "<!-- run -->\n\n")
	if len(blocks) == 1 {
		t.Fatalf("%s has no commands", page)
	}
	for _, block := range blocks[1:] {
		for line := range strings.Lines(block) {
			last := len(commands) - 1
			indented, ok := strings.CutPrefix(line, "    ")
			if !ok && strings.TrimSpace(line) != "" {
				break
			}
			if c, ok := strings.CutPrefix(indented, "$ "); ok {
				commands = append(commands, docCommand{line: c})
			} else if last >= 0 && strings.HasSuffix(commands[last].line, "\\\n") {
				commands[last].line += indented
			} else if last >= 0 && strings.TrimSpace(line) != "" {
				commands[last].want = append(commands[last].want, strings.TrimSuffix(indented, "\n"))
			}
		}
	}
	return commands
}

// freePort is one that nobody listens on, and that the kernel hands out to nobody who leaves the choice to it.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// paste has a shell in dir read the script, as when somebody pastes it. The programs relay, nats-server and nats are this binary. What the script
// left running ends with the test.
func paste(t *testing.T, dir, script string) *output {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, variable := range map[string]string{"relay": beRelay + "=1", "nats-server": beOther + "=nats-server", "nats": beOther + "=nats"} {
		program := fmt.Sprintf("#!/bin/sh\n%s GORACE=atexit_sleep_ms=0 exec %q \"$@\"\n", variable, self)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(program), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	said := &output{}
	shell := exec.Command("sh")
	shell.Stdin, shell.Dir, shell.Stdout, shell.Stderr = strings.NewReader(script), dir, said, said
	shell.Env = append(clean(os.Environ()), "PATH="+bin+":"+os.Getenv("PATH"), "RELAY_ADMIN__LISTEN=off", "XDG_CONFIG_HOME="+filepath.Join(bin, "config"))
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGTERM)
		ended := make(chan struct{})
		go func() { _ = shell.Wait(); close(ended) }() // when all have closed their output
		select {
		case <-ended:
		case <-time.After(patience):
			_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
			<-ended
			t.Error("what the commands started does not end")
		}
		if t.Failed() {
			t.Log(tail(said.String()))
		}
	})
	return said
}

// beOther in the environment makes the test binary one of the programs of NATS that the docs use.
const beOther = "BE_OTHER"

// other is nats-server as its own main has it, or what the docs need of the nats command, which is no part of this repository.
func other(name string) error {
	if name == "nats" {
		return natsCommand(os.Args[1:])
	}
	opts, err := server.ConfigureOptions(flag.NewFlagSet(name, flag.ExitOnError), os.Args[1:], nil, nil, nil)
	if err != nil {
		return err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}

// natsCommand saves a context, makes a stream, or publishes a message.
func natsCommand(args []string) error {
	var words []string
	flags := map[string]string{}
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "--")
		switch {
		case !ok:
			words = append(words, args[i])
		case name != "defaults" && i+1 < len(args):
			i++
			flags[name] = args[i]
		}
	}
	file := func(name string) string {
		return filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "nats", "context", name+".json")
	}
	type account struct {
		URL      string `json:"url"`
		User     string `json:"user"`
		Password string `json:"password"`
	}
	if len(words) == 3 && words[0] == "context" && words[1] == "save" {
		b, err := json.Marshal(account{flags["server"], flags["user"], flags["password"]})
		return errors.Join(err, os.MkdirAll(filepath.Dir(file("")), 0o700), os.WriteFile(file(words[2]), b, 0o600))
	}
	var a account
	b, err := os.ReadFile(file(flags["context"]))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return err
	}
	nc, err := nats.Connect(a.URL, nats.UserInfo(a.User, a.Password))
	if err != nil {
		return err
	}
	defer nc.Close()
	switch {
	case len(words) == 3 && words[0] == "stream" && words[1] == "add":
		_, err = nc.Request("$JS.API.STREAM.CREATE."+words[2], fmt.Appendf(nil, `{"name":%q,"subjects":[%q]}`, words[2], flags["subjects"]), 10*time.Second)
	case len(words) == 3 && words[0] == "pub":
		_, err = nc.Request(words[1], []byte(words[2]), 10*time.Second) // the stream says that it has it
	default:
		err = fmt.Errorf("the docs need nats %s, and their test has no such thing", strings.Join(args, " "))
	}
	return err
}

// varying is what differs from run to run: inboxes, times, jobs, digests, durations and small numbers.
var varying = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`_INBOX\.\w+`), "INBOX"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?`), "TIME"},
	{regexp.MustCompile(`\b\d{8}-\d{6}-\w{4}\b`), "JOB"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "DIGEST"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(µs|ms|s|m|h))+\b`), "LONG"},
	{regexp.MustCompile(`\b\d{1,2}\b`), "N"},
	{regexp.MustCompile(`\s+`), " "},
}

// steady is a line without what varies. Instances are called by their host.
func steady(line, host string) string {
	line = regexp.MustCompile(`\b`+regexp.QuoteMeta(host)+`-\w{6}\b`).ReplaceAllString(line, "INSTANCE")
	for _, v := range varying {
		line = v.pattern.ReplaceAllString(line, v.as)
	}
	return strings.TrimSpace(line)
}

// shows says whether what was printed is what a page shows, where … stands for any lines.
func shows(want, got []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == "…" {
		for i := range len(got) + 1 {
			if shows(want[1:], got[i:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && want[0] == got[0] && shows(want[1:], got[1:])
}

// The commands of docs/tutorial.md, one after the other in one shell and an empty folder: each prints what the page shows under it.
func TestDocs_tutorialCommandsWork(t *testing.T) {
	t.Parallel()
	commands := docCommands(t, "tutorial.md")
	if len(commands) < 50 {
		t.Fatalf("%d commands", len(commands))
	}
	ports := strings.NewReplacer(":9000", ":"+freePort(t), ":4222", ":"+freePort(t))
	mark := func(i int) string { return fmt.Sprintf("@@ %d\n", i) }
	var script strings.Builder
	for i, c := range commands {
		fmt.Fprintf(&script, "echo '@@ %d'\n%s", i, c.line)
	}
	fmt.Fprintf(&script, "echo '@@ %d'\n", len(commands))
	dir := t.TempDir()
	t.Cleanup(func() {
		for _, name := range []string{"nats.log", "nats.txt", "relay.log", "503.log", "422.log", "200.log", "status.txt", "audit.txt"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); t.Failed() && err == nil {
				t.Logf("%s:\n%s", name, tail(string(b)))
			}
		}
	})
	said := paste(t, dir, ports.Replace(script.String()))
	for i, c := range commands {
		natstest.Eventually(t, "this is through: "+c.line, func() bool { return strings.Contains(said.String(), mark(i+1)) })
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	rest := said.String()
	for i, c := range commands {
		_, rest, _ = strings.Cut(rest, mark(i))
		printed, _, _ := strings.Cut(rest, mark(i+1))
		var want, got []string
		for _, line := range c.want {
			want = append(want, steady(ports.Replace(line), "vm"))
		}
		for line := range strings.Lines(printed) {
			if line = steady(line, host); line != "" && !strings.HasPrefix(line, "changed by RELAY_ADMIN__LISTEN") { // which this test sets
				got = append(got, line)
			}
		}
		if !shows(want, got) {
			t.Errorf("$ %sthe page shows:\n%s\nwhat was printed:\n%s", c.line, strings.Join(want, "\n"), strings.Join(got, "\n"))
		}
	}
}

// What docs/tutorial.md has for Kubernetes can be read, its configuration is valid, and the probes are where it says.
func TestDocs_tutorialManifestsHold(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "```yaml\n")
	block, _, _ := strings.Cut(after, "```")
	type manifest struct {
		Kind string
		Data map[string]string
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args  []string
						Ports []struct {
							ContainerPort int `yaml:"containerPort"`
						}
					}
				}
			}
		}
	}
	var all []manifest
	for d := yaml.NewDecoder(bytes.NewReader([]byte(block))); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if len(all) != 2 || all[0].Kind != "ConfigMap" || all[1].Kind != "Deployment" {
		t.Fatalf("%+v", all)
	}
	config, container := all[0].Data["relay.yaml"], all[1].Spec.Template.Spec.Containers[0]
	if !slices.Equal(container.Args, []string{"relay", "run", "-c", "/etc/relay/relay.yaml"}) ||
		!strings.Contains(config, fmt.Sprintf(`probes: "0.0.0.0:%d"`, container.Ports[0].ContainerPort)) {
		t.Errorf("%+v does not go with\n%s", container, config)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "relay.creds"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "relay.yaml"), []byte(strings.ReplaceAll(config, "/etc/relay-nats", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := must(t, dir, "lint"); out != "ok: 1 route\n" {
		t.Errorf("lint says:\n%s", out)
	}
}
