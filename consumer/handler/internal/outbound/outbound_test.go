package outbound

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
)

func TestTarget_Validate(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Target{
		"":                                     {Subject: "out.{1}"},
		"subject: is required":                 {},
		"{subject} alone sends":                {Subject: "{subject}"},
		"with x for each placeholder":          {Subject: "a b.{1}"},
		"its publisher chooses where":          {Subject: "{1}.out"},
		`allow[0]: "$JS.>" belongs to the`:     {Subject: "{subject}.x", Allow: []string{"$JS.>"}},
		"allow: no pattern matches a subject ": {Subject: "out.{1}", Allow: []string{"in.>"}},
	} {
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestWay_Of(t *testing.T) {
	t.Parallel()
	target := Target{Subject: "{1}.out.{2}", Allow: []string{"a.>", "$JS.>", "relay.>"}}
	way, err := target.Way([]string{"relay.>"})
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{"a.b": "a.out.b", "b.b": "", "a": "", "$JS.b": "", "relay.b": ""} {
		if to, err := way.Of(from); to != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", from, to, err)
		}
	}
	if target.IsFixed() || len(target.Patterns()) != 3 || !(Target{Subject: "out"}).IsFixed() {
		t.Errorf("%q", target.Patterns())
	}
}

func TestCopyHeaders(t *testing.T) {
	t.Parallel()
	from, to := nats.Header{"Ce-Id": {"1"}, "nats-Rollup": {"all"}, "RELAY-Due": {"x"}, "Other": {"2"}}, nats.Header{}
	CopyHeaders(to, from, headerlist.New([]string{"*"}))
	if len(to) != 2 || to["Ce-Id"][0] != "1" || to["Other"][0] != "2" {
		t.Errorf("%v", to)
	}
	for entry, want := range map[string]string{"a*": "", "*": "", "a b": "is not a header name", "c*e*": "is not a header name", "nats-*": "may not be copied"} {
		if err := ValidateForwarded([]string{entry}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}
