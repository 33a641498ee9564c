package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/go-viper/mapstructure/v2"

	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/stock"
)

// Handler is what stands under handler: in a route: the settings of one kind.
type Handler struct {
	handler.Settings
	// given are the kinds that the file names: more than one is a fault.
	given []string
}

// Equal tells whether both say the same.
func (h Handler) Equal(other Handler) bool {
	return slices.Equal(h.given, other.given) && (h.Settings == nil || h.Kind() == other.Kind() && reflect.DeepEqual(h.Config(), other.Config()))
}

func (h Handler) withDefaults() Handler {
	if h.Settings != nil {
		h.Settings = h.Settings.WithDefaults()
	}
	return h
}

// book is all that a file can say: the keys, and what each means.
type book struct {
	kinds []handler.Kind
	root  *key
	docs  map[string]doc
}

// newBook has the stock kinds of handler and those given.
func newBook(extra []handler.Kind) *book {
	b := &book{kinds: append(stock.Kinds(), extra...), docs: maps.Clone(docs)}
	taken := map[string]bool{}
	for _, k := range b.kinds {
		if taken[k.Name()] {
			panic(fmt.Sprintf("config: two kinds of handler have the name %s", k.Name()))
		}
		taken[k.Name()] = true
		for path, d := range k.Docs() {
			full := join("routes.handler", k.Name())
			if path != "" {
				full = join(full, path)
			}
			b.docs[full] = doc{text: d.Text, values: d.Values}
		}
	}
	b.root = b.keyOf(reflect.TypeFor[Config](), "")
	names := b.root.field("routes").elem.field("handler").kindNames("and")
	b.docs["routes.handler"] = doc{text: "exactly one of " + names}
	b.docs["routes.fallback.handler"] = doc{text: "exactly one of " + names + ", with the same keys as handler"}
	return b
}

// kindKeys are the keys below handler, one for each kind.
func (b *book) kindKeys(path string) (keys []*key) {
	for _, hk := range b.kinds {
		k := b.keyOf(hk.Type(), join(path, hk.Name()))
		k.name, k.hkind = hk.Name(), hk
		keys = append(keys, k)
	}
	return keys
}

// decodeHandler is a hook of the decoder: what stands under handler: becomes the settings of its kind.
func (b *book) decodeHandler(_, to reflect.Type, data any) (any, error) {
	given, ok := data.(map[string]any)
	if to != reflect.TypeFor[Handler]() || !ok {
		return data, nil
	}
	var h Handler
	for _, k := range b.kinds {
		value, ok := given[k.Name()]
		if !ok {
			continue
		}
		settings, err := k.Decode(func(c any) error { return b.decode(value, c) })
		if err != nil {
			return nil, err
		}
		h.Settings, h.given = settings, append(h.given, k.Name())
	}
	return h, nil
}

// decode fills a struct with checked values. After the check nothing of this can fail, but for a file of a secret that has
// gone meanwhile; strict all the same, so that a gap in the check shows.
func (b *book) decode(from, to any) error {
	d, err := mapstructure.NewDecoder(b.decoder(to))
	if err != nil {
		return err
	}
	return d.Decode(from)
}

func (b *book) decoder(to any) *mapstructure.DecoderConfig {
	return &mapstructure.DecoderConfig{
		TagName: "koanf", ErrorUnused: true, Result: to,
		MatchName: func(key, field string) bool { return key == field },
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			b.decodeHandler,
			decodeSecret,
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc(),
		),
	}
}

// decodeSecret reads the file of a secret that is in one.
func decodeSecret(_, to reflect.Type, data any) (any, error) {
	m, ok := data.(map[string]any)
	if to != reflect.TypeFor[Secret]() || !ok {
		return data, nil
	}
	path, _ := m["file"].(string)
	return handler.SecretFile(path)
}

// report tells lint what a kind of handler finds in its settings.
type report struct {
	*collector
	prefix string
}

func (r report) Warn(key, format string, args ...any) { r.warn(r.prefix+key, format, args...) }
func (r report) Note(key, format string, args ...any) { r.note(r.prefix+key, format, args...) }
func (r report) File(key, path string)                { r.names(r.prefix+key, path) }
func (r report) SecretFile(key, path string) {
	r.File(key, path)
	r.secretFileMode(r.at(r.prefix+key), r.prefix+key, path)
}
