package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

// reachKeys are what says where the server is, and who is asked there.
var reachKeys = []string{"service", "nats"}

// topKey begins a line with a key that is below none.
var topKey = regexp.MustCompile(`^["']?([a-z_]+)["']?\s*:`)

// Reach is Load for whoever wants to ask instances about a file that is at fault: it reads service and nats, with their variables and flags,
// and nothing else, also of a file that is no YAML elsewhere. It returns false when these do not say where the server is, or are at fault.
func Reach(opts Options) (*Config, bool) {
	for _, keys := range [][]string{reachKeys, reachKeys[:1]} { // without nats of the file a flag says where the server is
		if cfg, ok := reach(opts, keys); ok {
			return cfg, true
		}
	}
	return nil, false
}

func reach(opts Options, keys []string) (*Config, bool) {
	c := newCollector(opts.File, opts.Kinds...)
	c.client = true
	var data []byte
	if opts.File != "" {
		f, err := os.Open(opts.File)
		if err != nil {
			return nil, false
		}
		defer f.Close()
		if !c.ownFile(f) {
			return nil, false
		}
		if data, err = readAll(f, maxFile); err != nil {
			return nil, false
		}
	}
	opts.Set = slices.DeleteFunc(slices.Clone(opts.Set), func(s string) bool { return !toReach(s, "=.") })
	opts.Env = slices.DeleteFunc(slices.Clone(opts.Env), func(s string) bool {
		rest, ok := strings.CutPrefix(s, envPrefix)
		return !ok || !toReach(strings.ToLower(rest), "=_")
	})
	cfg, err := c.load(reachLines(data, keys), opts)
	if err != nil || len(cfg.NATS.URL) == 0 && cfg.NATS.Embedded.Listen == "" {
		return nil, false
	}
	return cfg, true
}

// toReach tells whether a key is one of reachKeys, or below one.
func toReach(key, ends string) bool {
	return slices.Contains(reachKeys, key[:max(0, strings.IndexAny(key, ends))])
}

// reachLines empties the lines of all other keys.
func reachLines(data []byte, keys []string) []byte {
	var kept strings.Builder
	keep := false
	for line := range strings.Lines(string(data)) {
		if m := topKey.FindStringSubmatch(line); m != nil {
			keep = slices.Contains(keys, m[1])
		}
		if keep {
			kept.WriteString(line)
		} else {
			kept.WriteByte('\n')
		}
	}
	return []byte(kept.String())
}
