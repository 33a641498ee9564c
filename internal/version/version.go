// Package version says which relay this is. Everything that names a version asks here: `relay version`, `relay --version`,
// the log's first line, the service's entry among the micro services of NATS.
package version

import (
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
)

// set is what the build says: -ldflags "-X github.com/relaymq/relay/internal/version.set=v1.2.3".
var set = ""

const module = "github.com/relaymq/relay"

// String is the version as the build has it, such as v1.2.3 or v1.2.3-4-g0123abc; (devel) when the build does not say.
func String() string { return once() }

var once = sync.OnceValue(func() string {
	if set != "" {
		return set
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	return of(info)
})

// of finds relay in what the Go toolchain wrote down: it is the program itself, or a library of another program.
func of(info *debug.BuildInfo) string {
	if info.Main.Path == module && info.Main.Version != "" {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		for ; d != nil; d = d.Replace {
			if d.Path == module && d.Version != "" && d.Replace == nil {
				return d.Version
			}
		}
	}
	return "(devel)"
}

// Semver is the version in the form that semver.org wants, which NATS asks of a micro service: without the v, and
// 0.0.0-dev with what is known of the build when the build has no such version.
func Semver() string { return semver(String()) }

var (
	isSemver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)
	notWord  = regexp.MustCompile(`[^0-9a-zA-Z-]+`)
)

func semver(v string) string {
	if s := strings.TrimPrefix(v, "v"); isSemver.MatchString(s) {
		return s
	}
	if v = strings.Trim(notWord.ReplaceAllString(v, "-"), "-"); v == "" || v == "devel" {
		return "0.0.0-dev"
	}
	return "0.0.0-dev+" + v
}
