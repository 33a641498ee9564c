package version

import (
	"runtime/debug"
	"testing"
)

// NATS refuses a micro service whose version is not semver, and then relay's own start.
func TestSemver_isAlwaysOne(t *testing.T) {
	for v, want := range map[string]string{
		"v1.2.3":                                "1.2.3",
		"1.2.3":                                 "1.2.3",
		"v1.2.3-4-g0123abc-dirty":               "1.2.3-4-g0123abc-dirty",
		"v0.0.0-20261122033000-0123456789ab":    "0.0.0-20261122033000-0123456789ab",
		"v0.0.0-20261122033000-a37aa04cf+dirty": "0.0.0-20261122033000-a37aa04cf+dirty",
		"a37aa04":                               "0.0.0-dev+a37aa04",
		"a37aa04-dirty":                         "0.0.0-dev+a37aa04-dirty",
		"0123456":                               "0.0.0-dev+0123456",
		"(devel)":                               "0.0.0-dev",
		"devel":                                 "0.0.0-dev",
		"":                                      "0.0.0-dev",
		"v1.2":                                  "0.0.0-dev+v1-2",
		"rel/1 ü":                               "0.0.0-dev+rel-1",
	} {
		if got := semver(v); got != want || !isSemver.MatchString(got) {
			t.Errorf("%q: %q, want %q", v, got, want)
		}
	}
}

func TestString_findsRelayInOtherPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"itself": {debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.0.0"}}, "v1.0.0"},
		"a library": {debug.BuildInfo{
			Main: debug.Module{Path: "example.com/app", Version: "v9.0.0"},
			Deps: []*debug.Module{{Path: "example.com/other", Version: "v8.0.0"}, {Path: module, Version: "v1.1.0"}},
		}, "v1.1.0"},
		"replaced by a folder": {debug.BuildInfo{
			Deps: []*debug.Module{{Path: module, Version: "v1.1.0", Replace: &debug.Module{Path: "../relay"}}},
		}, "(devel)"},
		"unknown": {debug.BuildInfo{}, "(devel)"},
	} {
		if got := of(&c.info); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
