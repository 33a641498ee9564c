package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Class is what a change of a key takes.
type Class string

// The classes, as the schema has them under x-reload.
const (
	Live    Class = "live"    // it counts from the reload on
	Restart Class = "route"   // its route begins anew, while the others go on
	Process Class = "process" // it counts when the process is started again
)

// own are keys of which each instance has its own: instances of one host cannot listen on one address.
var own = []string{"admin.listen", "admin.probes"}

// inPlace are the keys of a route that change while it goes on, with what is below them. A handler of another kind, and a fallback, a batch or a
// rate that comes or goes begin the route anew.
var inPlace = []string{"concurrency", "rate", "burst", "timeout", "retry", "supervisor", "stash", "batch", "handler", "fallback"}

// classOf is the class of a key by its path in docs.
func classOf(path string) Class {
	section, rest, _ := strings.Cut(path, ".")
	part, _, _ := strings.Cut(rest, ".")
	switch {
	case (section == "routes" || section == "defaults") && slices.Contains(inPlace, part):
		return Live
	case section == "routes" || section == "defaults":
		return Restart
	case section == "streams" || section == "drain" || section == "limits" || path == "log.level" || section == "reload":
		return Live
	}
	return Process
}

// Difference is what differs between two configurations.
type Difference struct {
	Added, Changed, Removed []string // routes
	Live, NeedsRestart      []string // keys
}

// Empty tells whether there is nothing to do.
func (d Difference) Empty() bool {
	return len(d.Added)+len(d.Changed)+len(d.Removed)+len(d.Live)+len(d.NeedsRestart) == 0
}

// Compare tells what a change from the configuration that runs takes. Keys that need the process are compared with those
// that it was started with.
func Compare(started, running, next *Config) (d Difference) {
	before := make(map[string]int)
	for i, rt := range running.Routes {
		before[rt.Name] = i
	}
	for i, rt := range next.Routes {
		was, there := before[rt.Name]
		delete(before, rt.Name)
		if !there {
			d.Added = append(d.Added, rt.Name)
			continue
		}
		if old := running.Routes[was]; !reflect.DeepEqual(old.Route, rt.Route) || !old.Handler.Equal(rt.Handler) || !old.Fallback.Equal(rt.Fallback) ||
			!slices.Equal(running.filesOf(was), next.filesOf(i)) {
			d.Changed = append(d.Changed, rt.Name)
		}
	}
	d.Removed = slices.Sorted(maps.Keys(before))
	d.Live = renewed(started, running, next)
	for _, f := range newBook(nil).root.fields {
		d.keys(f, reflect.ValueOf(started).Elem(), reflect.ValueOf(running).Elem(), reflect.ValueOf(next).Elem())
	}
	return d
}

// keys compares a key, and those below it.
func (d *Difference) keys(k *key, started, running, next reflect.Value) {
	if k.name == "routes" || k.name == "defaults" {
		return
	}
	started, running, next = started.FieldByIndex(k.index), running.FieldByIndex(k.index), next.FieldByIndex(k.index)
	if k.kind == object {
		for _, f := range k.fields {
			d.keys(f, started, running, next)
		}
		return
	}
	switch classOf(k.path) {
	case Live:
		if !reflect.DeepEqual(running.Interface(), next.Interface()) {
			d.Live = append(d.Live, k.path)
		}
	case Process:
		if s, ok := next.Interface().(Secret); ok && s.File() != "" && s.File() == started.Interface().(Secret).File() {
			return // what the file holds now counts already, see renewed
		}
		if !reflect.DeepEqual(started.Interface(), next.Interface()) {
			d.NeedsRestart = append(d.NeedsRestart, k.path)
		}
	}
}

// KeepService gives the configuration the service of another one: it cannot change while the process runs, and prefixes of dead
// letters follow from it.
func (c *Config) KeepService(from *Config) {
	for i := range c.Routes {
		if p := &c.Routes[i].DeadLetter.Prefix; *p == c.Service+".dlq" {
			*p = from.Service + ".dlq"
		}
	}
	c.Service = from.Service
}

// Digest tells whether the content of files is as it was. One that cannot be read is as good as another content.
func Digest(files ...string) string {
	sum := sha256.New()
	for _, name := range files {
		data, err := os.ReadFile(name)
		fmt.Fprintf(sum, "%q %d %v\n", name, len(data), err)
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
