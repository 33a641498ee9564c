package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/relaymq/relay/internal/control"
)

// Digests are those of the settings of each route, by its name, and of all other keys. What files hold that the configuration names is part of
// them. Two configurations with the same digests differ in nothing but secrets that stand in the configuration itself.
func (c *Config) Digests() (routes map[string]control.ConfigDigest, rest control.ConfigDigest) {
	b := newBook(nil)
	routes = make(map[string]control.ConfigDigest)
	for i, rt := range c.Routes {
		s := newSums()
		for _, f := range c.filesOf(i) {
			fmt.Fprintln(s[Live], f.key, hint(f.sum))
		}
		for _, k := range b.root.field("routes").elem.fields {
			s.add(b, k, classOf(k.path), reflect.ValueOf(rt).FieldByIndex(k.index))
		}
		// What comes or goes begins the route anew; see inPlace.
		fmt.Fprintln(s[Restart], kindOf(&rt.Handler), rt.Batch != nil, rt.Rate.Count > 0, rt.Fallback != nil)
		if rt.Fallback != nil {
			fmt.Fprintln(s[Restart], kindOf(&rt.Fallback.Handler))
		}
		routes[rt.Name] = control.ConfigDigest{Live: s.sum(Live), Anew: s.sum(Restart)}
	}
	s := newSums()
	for _, f := range c.Source.named {
		if strings.HasPrefix(f.key, "nats.") {
			fmt.Fprintln(s[Live], f.key, hint(f.sum))
		}
	}
	for _, k := range b.root.fields {
		if k.name != "routes" && k.name != "defaults" {
			s.add(b, k, "", reflect.ValueOf(c).Elem().FieldByIndex(k.index))
		}
	}
	return routes, control.ConfigDigest{Live: s.sum(Live), Anew: s.sum(Process), Own: s.sum(ownKeys)}
}

func kindOf(h *Handler) string {
	if h.Settings == nil {
		return ""
	}
	return h.Kind()
}

// sums are digests by class.
type sums map[Class]hash.Hash

// ownKeys is the class of keys that are part of no other digest.
const ownKeys Class = "own"

func newSums() sums {
	return sums{Live: sha256.New(), Restart: sha256.New(), Process: sha256.New(), ownKeys: sha256.New()}
}

func (s sums) sum(c Class) string { return hex.EncodeToString(s[c].Sum(nil))[:12] }

// add adds the value of a key, and of those below it. An empty class is the key's own.
func (s sums) add(b *book, k *key, class Class, v reflect.Value) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch k.kind {
	case object:
		for _, f := range k.fields {
			s.add(b, f, class, v.FieldByIndex(f.index))
		}
		return
	case handlers:
		if h, ok := v.Interface().(Handler); ok && h.Settings != nil {
			kind := b.keyOf(reflect.TypeOf(h.Config()), "routes.handler."+h.Kind())
			s.add(b, kind, class, reflect.ValueOf(h.Config()))
		}
		return
	case list:
		for i := range v.Len() {
			fmt.Fprintln(s.of(k, class), k.path, i)
			s.add(b, k.elem, class, v.Index(i))
		}
		return
	case table:
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			fmt.Fprintln(s.of(k, class), k.path, name)
			s.add(b, k.elem, class, v.MapIndex(name))
		}
		return
	case texts:
		if m, ok := v.Interface().(map[string]string); ok {
			for _, name := range slices.Sorted(maps.Keys(m)) {
				fmt.Fprintf(s.of(k, class), "%s %q %s\n", k.path, name, hintOf(m[name])) // which may be secrets
			}
			return
		}
	}
	shown := fmt.Sprint(v.Interface()) // which hides secrets
	if secret, ok := v.Interface().(Secret); ok && secret.File() != "" && !strings.HasPrefix(k.path, "nats.") {
		shown = hintOf(secret.Reveal())
	}
	fmt.Fprintf(s.of(k, class), "%s %q\n", k.path, shown)
}

func (s sums) of(k *key, class Class) hash.Hash {
	if class == "" {
		class = classOf(k.path)
	}
	if slices.Contains(own, k.path) {
		class = ownKeys
	}
	return s[class]
}
