package partition

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

func (g Generation) config() jetstream.StreamConfig {
	s := &jetstream.StreamSource{Name: g.Stream}
	for _, t := range g.Transforms() {
		s.SubjectTransforms = append(s.SubjectTransforms, jetstream.SubjectTransformConfig(t))
	}
	return jetstream.StreamConfig{Name: g.Name(), Subjects: []string{g.Filter()}, Sources: []*jetstream.StreamSource{s}}
}

// The server and relay put each message into the same partition, and its own subject, sequence and headers come back.
func TestGeneration_asTheServerDoes(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]Layout{
		"subject":  {Count: 16, Key: "subject", Subjects: []string{"a.>"}},
		"token":    {Count: 7, Key: "{2}", Subjects: []string{"a.*.new", "a.*.old.*"}},
		"tokens":   {Count: 31, Key: "{3}/{2}", Subjects: []string{"a.*.*", "a.*.*.>"}},
		"whole":    {Count: 5, Key: "x{subject}", Subjects: []string{"a.*", "a.*.>"}},
		"constant": {Count: 5, Key: "subject", Subjects: []string{"a.one", "a.two"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := natstest.Start(t).JetStream(t)
			l.Stream = "A"
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}}); err != nil {
				t.Fatal(err)
			}
			g := Generation{Service: "relay", Route: "orders", Number: 3, Layout: l}
			if _, err := js.CreateStream(t.Context(), g.config()); err != nil {
				t.Fatal(err)
			}
			at := make(map[string]uint64)
			rapid.Check(t, func(rt *rapid.T) {
				token := rapid.StringMatching(`[a-z0-9_$%é]{1,12}`)
				pattern := rapid.SampledFrom(l.Subjects).Draw(rt, "pattern")
				var tokens []string
				for _, p := range strings.Split(pattern, ".") {
					switch p {
					case "*":
						p = token.Draw(rt, "token")
					case ">":
						p = strings.Join(rapid.SliceOfN(token, 1, 4).Draw(rt, "rest"), ".")
					}
					tokens = append(tokens, p)
				}
				literal := strings.Join(tokens, ".")
				if at[literal] > 0 {
					return
				}
				ack, err := js.Publish(t.Context(), literal, nil)
				if err != nil {
					rt.Fatal(err)
				}
				at[literal] = ack.Sequence
			})
			stream, err := js.Stream(t.Context(), g.Name())
			if err != nil {
				t.Fatal(err)
			}
			for stream.CachedInfo().State.Msgs < uint64(len(at)) {
				if time.Sleep(10 * time.Millisecond); t.Context().Err() != nil {
					t.Fatal("not all are sourced")
				}
				if _, err = stream.Info(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for seq := uint64(1); seq <= uint64(len(at)); seq++ {
				m, err := stream.GetMsg(t.Context(), seq)
				if err != nil {
					t.Fatal(err)
				}
				literal, wasMoved, ok := Own(m.Subject)
				origin, from := Source(m.Header.Get(SourceHeader))
				if !ok || wasMoved || !from || origin != at[literal] {
					t.Fatalf("%q of %q, sequence %d of %d", literal, m.Subject, origin, at[literal])
				}
				if want := fmt.Sprintf("relay.part.orders.3.%d.", g.Of(literal)); !strings.HasPrefix(m.Subject, want) {
					t.Fatalf("the server has put it on %q, not %q", m.Subject, want)
				}
			}
		})
	}
}

func TestOwn(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		"relay.part.orders.1.5.c.a.b": "a.b", "relay.part.orders.1.5.m.a": "a+", "relay.part.orders.1.5.x.a": "", "relay.part.orders.1.5.c": "", "a.b": "", "": "",
	} {
		literal, wasMoved, ok := Own(stored)
		if wasMoved {
			literal += "+"
		}
		if ok != (want != "") || ok && literal != want {
			t.Errorf("%q: %q, %v", stored, literal, ok)
		}
	}
}

func TestLayout_validate(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Layout{
		"":                                {Count: 16, Key: "{2}", Subjects: []string{"a.*", "b.*.c"}},
		"2 to 256 (got 1)":                {Count: 1, Key: "subject"},
		"2 to 256 (got 257)":              {Count: 257, Key: "subject"},
		"key: route":                      {Count: 2, Key: "route"},
		`is not a * in subject "a.b"`:     {Count: 2, Key: "{2}", Subjects: []string{"a.*", "a.b"}},
		`{3} of key "{3}" is not a *`:     {Count: 2, Key: "{3}", Subjects: []string{"a.*.>"}},
		`{4} of key "{2}{4}" is not a * `: {Count: 2, Key: "{2}{4}", Subjects: []string{"a.*.>"}},
	} {
		err := l.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]uint64{"A 17 > x a.b": 17, "A:abc 3 a": 3, "A": 0, "": 0, "A x": 0, "A 0 b": 0} {
		if n, ok := Source(header); n != want || ok != (want > 0) {
			t.Errorf("%q: %d, %v", header, n, ok)
		}
	}
}
