package ownstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// setting is a field of a stream that nats.go does not know: one of a newer server.
type setting struct{ name, value string }

// known are the fields that nats.go knows.
var known = sync.OnceValue(func() map[string]bool {
	names := make(map[string]bool)
	for f := range reflect.TypeFor[jetstream.StreamConfig]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names[name] = true
	}
	return names
})

// kept are the settings that the server kept when relay set them back, by stream: its own defaults.
var kept sync.Map

// unknown asks for the settings of a stream that nats.go does not know, and that are neither off nor known to be the server's own.
func unknown(ctx context.Context, js jetstream.JetStream, stream string) ([]setting, error) {
	m, err := js.Conn().RequestWithContext(ctx, prefix(js)+"STREAM.INFO."+stream, nil)
	if err != nil {
		return nil, err
	}
	list, err := strangers(m.Data)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", stream, err)
	}
	return slices.DeleteFunc(list, func(s setting) bool {
		_, is := kept.Load(stream + " " + s.name + " " + s.value)
		return is
	}), nil
}

// strangers reads an answer of the server.
func strangers(answer []byte) (list []setting, err error) {
	var info struct {
		Config map[string]json.RawMessage `json:"config"`
		Error  *jetstream.APIError        `json:"error"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return nil, err
	}
	if info.Error != nil {
		return nil, info.Error
	}
	for name, value := range info.Config {
		if !known()[name] && !slices.ContainsFunc([]string{"null", "false", "0", "-1", `""`, "{}", "[]"}, func(off string) bool { return bytes.Equal(value, []byte(off)) }) {
			list = append(list, setting{name, string(value)})
		}
	}
	slices.SortFunc(list, func(a, b setting) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// settle looks at what became of settings that an update left out. The server refuses the update of a setting that it never changes. One
// that is still there after an update that it took is its own default, and is remembered.
func settle(ctx context.Context, js jetstream.JetStream, stream string, tried []setting, log *slog.Logger) error {
	still, err := unknown(ctx, js, stream)
	if err != nil {
		return err
	}
	for _, s := range tried {
		args := []any{"stream", stream, "field", s.name, "value", s.value}
		if slices.Contains(still, s) {
			kept.Store(stream+" "+s.name+" "+s.value, true)
			log.Warn("one of relay's own streams has a setting that this version does not know, and the server keeps it", args...)
		} else {
			log.Warn("a setting of one of relay's own streams that this version does not know is unset", args...)
		}
	}
	return nil
}

// prefix is what the subjects of the JetStream API begin with.
func prefix(js jetstream.JetStream) string {
	opts := js.Options()
	switch {
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "."
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API."
	}
	return "$JS.API."
}
