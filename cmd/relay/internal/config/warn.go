package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/subject"
)

// Warning is something that relay runs with and somebody should know.
type Warning struct {
	Fault
	// Note says that it may well be meant: lint tells it, and the log does not.
	Note bool
}

func (w Warning) String() string {
	if w.Note {
		return "note: " + w.Fault.String()
	}
	return "warning: " + w.Fault.String()
}

func (c *collector) warn(key, format string, args ...any) { c.warnAt(c.at(key), key, format, args...) }

func (c *collector) warnAt(at origin, key, format string, args ...any) {
	c.addWarning(Warning{Fault: shown(at, key, fmt.Sprintf(format, args...))})
}

func (c *collector) note(key, format string, args ...any) {
	c.addWarning(Warning{Fault: shown(c.at(key), key, fmt.Sprintf(format, args...)), Note: true})
}

func (c *collector) addWarning(w Warning) {
	if len(c.warnings) < maxFaults && !slices.Contains(c.warnings, w) {
		c.warnings = append(c.warnings, w)
	}
}

// secrets are what credentials look like. They are never shown, wherever somebody pasted them: seeds of NKeys, JWTs, PEM,
// keys of webhooks.
var secrets = regexp.MustCompile(`\bS[ACNOUX][A-Z2-7]{20,}|\beyJ[\w-]{10,}(\.[\w-]*)*|-----BEGIN(?s:.*)|\bwhs(ec|k)_[^\s"]+`)

func mask(s string) string { return secrets.ReplaceAllString(s, "***") }

// ownFile refuses a configuration that somebody else may change: whoever writes it says which programs relay starts. The
// rule is that of ssh for its own, but for a group that may write, as it is where everybody has a group of their own.
func (c *collector) ownFile(f *os.File) (ok bool) {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return true // a pipe or a terminal is whoever gave it
	}
	at, me := origin{file: c.file}, os.Geteuid()
	mode := fi.Mode().Perm()
	switch owner := int(fi.Sys().(*syscall.Stat_t).Uid); {
	case owner != me && owner != 0:
		c.refuse(at, "", "belongs to user %d, but relay runs as user %d. Whoever can write the configuration decides which programs relay starts: give the file to this user or to root, with chown %d %s", owner, me, me, c.file)
	case mode&0o002 != 0:
		c.refuse(at, "", "every user of this host may write this file (mode %04o), and so decide which programs relay starts: chmod o-w %s", mode, c.file)
	default:
		if mode&0o020 != 0 {
			c.warnAt(at, "", "its group may write this file (mode %04o), and so decide which programs relay starts", mode)
		}
		// No refusal: orchestrators mount such folders, read-only or in a namespace of their own.
		dir := filepath.Dir(c.file)
		if fi, err := os.Stat(dir); err == nil && fi.Mode().Perm()&0o002 != 0 && fi.Mode()&fs.ModeSticky == 0 {
			c.warnAt(at, "", "every user of this host may write the folder %s (mode %04o), replace this file, and so decide which programs relay starts: chmod o-w %[1]s", dir, fi.Mode().Perm())
		}
		return true
	}
	return false
}

// secretFileMode warns of a file with a secret that every user of the host may read. It does not refuse: some
// orchestrators mount secrets readable, in a namespace of their own.
func (c *collector) secretFileMode(at origin, key, path string) {
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&fs.FileMode(0o004) != 0 {
		c.warnAt(at, key, "every user of this host may read the secret in %q (mode %04o): chmod it to 0600", path, fi.Mode().Perm())
	}
}

// warnings are about values that are valid one by one.
func (c *collector) warnAbout(cfg *Config, routes, streams []claim) {
	for _, f := range []struct{ key, path string }{{"nats.creds", cfg.NATS.Creds}, {"nats.nkey", cfg.NATS.NKey}, {"nats.tls.key", cfg.NATS.TLS.Key}} {
		if f.path != "" {
			c.secretFileMode(c.at(f.key), f.key, f.path)
		}
	}
	for i, r := range cfg.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		c.keyTokens(key+".key", r)
		if r.Order == "key" && r.Instances == "" && r.Partitions == 0 {
			c.note(key+".order", "implies instances: one, so that one instance handles the route and the others stand by")
		}
		for _, h := range r.parts() {
			if h.Settings == nil {
				continue
			}
			at := report{c, key + "." + h.key + "." + h.Kind() + "."}
			h.Lint(at)
			if p := h.Publishes(); p.Stored && len(cfg.Streams) > 0 {
				c.target(at.prefix+p.Key, p, r.Subjects, streams)
			}
		}
	}
}

// target tells when none of the declared streams takes what is forwarded.
func (c *collector) target(key string, p handler.Publishing, subjects []string, streams []claim) {
	for _, to := range targets(p, subjects) {
		if !slices.ContainsFunc(streams, func(s claim) bool { return subject.Overlaps(to, s.pattern) }) {
			c.note(key, "no stream under streams holds %q: unless the server has a stream for this subject, nothing can be forwarded", to)
		}
	}
}

// keyTokens looks whether the subjects of a route have the tokens that its key names. A subject that has not is a key of
// its own, which is hardly what a template is for.
func (c *collector) keyTokens(key string, r Route) {
	t, err := subject.ParseTemplate(r.Key)
	if err != nil || !strings.Contains(r.Key, "{") {
		return
	}
	var short []string
	for _, s := range r.Subjects {
		if _, err := t.Expand(s); err != nil && !strings.HasSuffix(s, ">") {
			short = append(short, s)
		}
	}
	switch {
	case len(short) > 0 && len(short) == len(r.Subjects):
		c.fault(key, "%q: no subject of the route has that many tokens", r.Key)
	case len(short) > 0:
		c.warn(key, "%q: %s has fewer tokens than the template names, so that each subject of it is a key of its own", r.Key, strings.Join(short, " and "))
	}
}

// misspelt warns of variables that look like keys but have one underscore where two stand for the dot.
func (c *collector) misspelt(env []string, read []override) {
	names := envNames(c.root, "")
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		right, ok := names[strings.TrimPrefix(name, envPrefix)]
		if !ok || value == "" || !strings.HasPrefix(name, envPrefix) || slices.ContainsFunc(read, func(o override) bool { return o.at.file == name }) {
			continue
		}
		c.warnAt(origin{file: name}, "", "is ignored: did you mean %s%s? Write two underscores for each dot", envPrefix, right)
	}
}

// envNames are the keys outside of lists as somebody may write them who does not know the rule, with their right names.
func envNames(k *key, right string) map[string]string {
	all := map[string]string{}
	for _, f := range k.fields {
		name := strings.ToUpper(f.name)
		if right != "" {
			name = right + "__" + name
		}
		if f.kind == object {
			for wrong, r := range envNames(f, name) {
				all[wrong] = r
			}
		} else if wrong := strings.ReplaceAll(name, "__", "_"); wrong != name {
			all[wrong] = name
		}
	}
	return all
}
