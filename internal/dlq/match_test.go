package dlq

import (
	"encoding/json"
	"testing"
)

func TestBodyMatch(t *testing.T) {
	const body = `{"id": 42, "big": 9007199254740993, "total": 99.50, "ok": true, "none": null, "note": "late: 3 days",
		"customer": {"id": "42", "country": "AT", "odd.key": [1, {"x": "y"}]}, "items": [{"sku": "A-1"}, {"sku": "B-2"}]}`
	for text, want := range map[string]bool{
		".id=42": true, ".id = 42": true, ".id==42": true, ".id=42.0": true, ".id=4.2e1": true, ".id=43": false, ".id!=43": true, ".id!=42": false,
		`.id="42"`: false, `.customer.id="42"`: true, ".customer.id=42": true,
		".big=9007199254740993": true, ".big=9007199254740992": false, ".big>9007199254740992": true,
		".total>=99.5": true, ".total>99.5": false, ".total<100": true, ".total<=99": false,
		".note~^late": true, ".note~days$": true, ".note~never": false, ".note>100": false, ".note>a": true,
		".ok=true": true, ".ok=false": false, ".none=null": true, ".none": true, ".nothing": false, ".nothing!=1": false,
		".customer.country=AT": true, ".customer.country!=DE": true, `."customer".country=AT`: true,
		`.customer."odd.key"[0]=1`: true, `.customer."odd.key"[1].x=y`: true, ".items[0].sku=A-1": true, ".items[1].sku=A-1": false,
		".items[].sku=B-2": true, ".items[].sku=C": false, ".items[7]": false, ".items.sku=A-1": false, ".id[0]": false,
		".": true, ".=42": false, `.items[0]={"sku":"A-1"}`: true, ".total=1e999": false,
	} {
		m, err := ParseBodyMatch(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := m.Match([]byte(body)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
		var again BodyMatch
		b, err := json.Marshal(m)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil || again.Match([]byte(body)) != want {
			t.Errorf("%s: through JSON %s: %v", text, b, err)
		}
	}
	whole, _ := ParseBodyMatch(".=42")
	for body, want := range map[string]bool{"42": true, " 42\n": true, `"42"`: true, "43": false, "42 43": false, "": false, "plain text": false, "\xff": false} {
		if whole.Match([]byte(body)) != want {
			t.Errorf("%q: want %v", body, want)
		}
	}
}

func TestParseBodyMatch_refuses(t *testing.T) {
	for _, text := range []string{"", "id=1", ".a..b", ".a[", ".a[x]", ".a[-1]", `."a`, ".a b", ".a~(", `.a="x`, "..", ".a.=1", ".a]"} {
		if m, err := ParseBodyMatch(text); err == nil {
			t.Errorf("%q: got %+v", text, m)
		}
	}
}

func FuzzParseBodyMatch(f *testing.F) {
	f.Add(`.a."b c"[0][].d>=1e3`, `{"a":[1]}`)
	f.Fuzz(func(t *testing.T, text, body string) {
		m, err := ParseBodyMatch(text)
		if err == nil {
			m.Match([]byte(body))
		}
	})
}
