package process

import (
	"maps"
	"os"
	"slices"
)

// inherited are the variables of relay's own environment that programs get.
var inherited = []string{"PATH", "LANG", "TZ"}

func fixedEnv(added map[string]string, as *account) []string {
	var env []string
	give := func(name, value string) {
		if _, overridden := added[name]; !overridden {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			give(name, value)
		}
	}
	if as != nil && as.name != "" {
		give("HOME", as.home)
		give("LOGNAME", as.name)
		give("USER", as.name)
	}
	for _, name := range slices.Sorted(maps.Keys(added)) {
		env = append(env, name+"="+added[name])
	}
	return env
}
