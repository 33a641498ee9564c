package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// namedFile is a file that the configuration names, and what was in it when the configuration was read.
type namedFile struct {
	key, path string
	sum       [sha256.Size]byte
}

// names notes a file. One that cannot be read is as good as another content: whoever needs it says so.
func (c *collector) names(key, path string) {
	data, err := readCapped(path, maxFile)
	c.files = append(c.files, namedFile{key, path, sha256.Sum256(fmt.Appendf(data, "%v", err))})
}

// filesOf are those that the handlers of a route name, with the keys below the route.
func (c *Config) filesOf(route int) (files []namedFile) {
	for _, f := range c.Source.named {
		if key, ok := strings.CutPrefix(f.key, fmt.Sprintf("routes[%d].", route)); ok {
			f.key = key
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b namedFile) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.path, b.path))
	})
	return slices.Compact(files)
}

// renewed are the keys of nats whose files hold something else now. The files are those that the process was started with.
func renewed(started, running, next *Config) (keys []string) {
	has := func(c *Config, f namedFile) int {
		return slices.IndexFunc(c.Source.named, func(o namedFile) bool { return o.key == f.key && o.path == f.path })
	}
	for _, f := range next.Source.named {
		i := has(running, f)
		if strings.HasPrefix(f.key, "nats.") && f.key != "nats.context" && i >= 0 && running.Source.named[i] != f && has(started, f) >= 0 {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// hint is what goes into a digest of a secret, or of the content of a file. Digests are told to whoever may see the status: 16 bits
// show nearly every difference, and are too few to find out a word by trying.
func hint(sum [sha256.Size]byte) string { return fmt.Sprintf("%x", sum[:2]) }

func hintOf(text string) string { return hint(sha256.Sum256([]byte(text))) }
