package process

import (
	"fmt"
	"strings"
	"testing"
)

type found []string

func (f *found) Warn(key, format string, args ...any) {
	*f = append(*f, key+": "+fmt.Sprintf(format, args...))
}
func (f *found) Note(key, format string, args ...any) { f.Warn(key, format, args...) }
func (f *found) File(string, string)                  {}
func (f *found) SecretFile(string, string)            {}

// Lint said nothing of a user with limits, where run ended for want of a right.
func TestLint_regressionSeesTheRightsThatRunNeeds(t *testing.T) {
	files, processes := Limits{Files: 20}, Limits{Processes: 5}
	for name, c := range map[string]struct {
		cfg      Config
		uid, gid int
		limited  bool
		want     string // empty: nothing is found
	}{
		"root without the capability":    {Config{User: "54321:54321", Limits: files}, 0, 0, false, "limits: relay run needs the capability CAP_SYS_RESOURCE"},
		"root with it":                   {Config{User: "54321:54321", Limits: files}, 0, 0, true, ""},
		"root without limits":            {Config{User: "54321:54321"}, 0, 0, false, ""},
		"somebody":                       {Config{User: "54321:54321", Limits: files}, 1000, 1000, false, "user: relay run must be root to run programs as 54321:54321, and needs the capability CAP_SYS_RESOURCE"},
		"somebody without limits":        {Config{User: "54321:54321"}, 1000, 1000, false, "lint runs as uid 1000, and cannot tell"},
		"the user itself":                {Config{User: "54321:54321", Limits: files}, 54321, 54321, false, ""},
		"limits alone":                   {Config{Limits: files}, 1000, 1000, false, ""},
		"processes of root":              {Config{Limits: processes}, 0, 0, true, "limits.processes: has no effect on root"},
		"processes of a user who is it":  {Config{User: "0:0", Limits: processes}, 1000, 1000, false, "limits.processes: has no effect on root"},
		"a user whom nobody knows":       {Config{User: "no-such-user"}, 0, 0, true, `user: there is no user "no-such-user" on this machine`},
		"processes of relay's own user":  {Config{Limits: processes}, 1000, 1000, false, ""},
		"processes of another one there": {Config{User: "54321:54321", Limits: processes}, 0, 0, true, ""},
	} {
		var got found
		lintRights(c.cfg, c.uid, c.gid, func() bool { return c.limited }, &got)
		if text := strings.Join(got, "\n"); (c.want == "") != (text == "") || !strings.Contains(text, c.want) || len(got) > 1 {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
