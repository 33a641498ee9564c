package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"pgregory.net/rapid"
)

func parse(t testing.TB, texts ...string) (keys []*Key) {
	t.Helper()
	for _, s := range texts {
		k, err := ParseKey(s)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	return keys
}

func headers(id, timestamp, signature string) http.Header {
	return http.Header{HeaderID: {id}, HeaderTimestamp: {timestamp}, HeaderSignature: {signature}}
}

// The vector of the specification's own libraries.
func TestSign_vector(t *testing.T) {
	keys := parse(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	timestamp, signature := Sign(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if timestamp != "1614265330" || signature != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("%s %s", timestamp, signature)
	}
}

// The specification's library accepts what Sign makes, with any of several keys, whatever the body is; ed25519 signatures are those
// of the standard library, byte for byte; and Verify accepts all of these and nothing that was changed.
func TestSign_isWhatTheJudgesWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[A-Za-z0-9_~%-]{1,80}`).Draw(t, "id")
		body := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body")
		old, young, private := NewSecret(), NewSecret(), NewPrivate()
		now := time.Now()
		var keys []*Key
		for _, s := range []string{young, private, old} {
			k, err := ParseKey(s)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, k)
		}
		timestamp, signature := Sign(keys, id, now, body)
		h := headers(id, timestamp, signature)
		for _, secret := range []string{old, young} {
			judge, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := judge.Verify(body, h); err != nil {
				t.Fatalf("the specification's library: %v", err)
			}
		}
		raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(private, prefixPrivate))
		want := ed25519.Sign(raw, fmt.Appendf(nil, "%s.%s.%s", id, timestamp, body))
		if !strings.Contains(signature, " v1a,"+base64.StdEncoding.EncodeToString(want)+" ") {
			t.Fatalf("the ed25519 signature in %s is not that of crypto/ed25519", signature)
		}
		public, err := ParseKey(keys[1].Public())
		if err != nil || public.Signs() {
			t.Fatal(err, public.Signs())
		}
		for _, k := range []*Key{keys[0], keys[2], public} {
			if by, err := Verify([]*Key{k}, h, body, now); err != nil || by != k {
				t.Fatalf("%v: %v %v", k, by, err)
			}
			other := append([]byte("x"), body...)
			if _, err := Verify([]*Key{k}, h, other, now); !errors.Is(err, ErrSignature) {
				t.Fatalf("another body: %v", err)
			}
			if _, err := Verify([]*Key{k}, headers(id+"x", timestamp, signature), body, now); !errors.Is(err, ErrSignature) {
				t.Fatalf("another id: %v", err)
			}
		}
	})
}

func TestVerify_refuses(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	body := []byte("body")
	keys := parse(t, NewSecret(), NewPrivate())
	timestamp, good := Sign(keys, "id", now, body)
	for name, c := range map[string]struct {
		h    http.Header
		now  time.Time
		want error
	}{
		"nothing":             {http.Header{}, now, ErrUnsigned},
		"no signature":        {headers("id", timestamp, ""), now, ErrUnsigned},
		"old":                 {headers("id", timestamp, good), now.Add(Tolerance + time.Second), ErrTime},
		"of tomorrow":         {headers("id", timestamp, good), now.Add(-Tolerance - time.Second), ErrTime},
		"before time began":   {headers("id", "-9223372036854775808", good), now, ErrTime},
		"time with a sign":    {headers("id", "+1800000000", good), now, ErrTime},
		"time with a word":    {headers("id", "now", good), now, ErrTime},
		"another's key":       {headers("id", timestamp, "v1,"+base64.StdEncoding.EncodeToString(make([]byte, 32))), now, ErrSignature},
		"an empty one":        {headers("id", timestamp, "v1,"), now, ErrSignature},
		"another version":     {headers("id", timestamp, strings.ReplaceAll(good, "v1", "v2")), now, ErrSignature},
		"versions exchanged":  {headers("id", timestamp, strings.NewReplacer("v1a,", "v1,", "v1,", "v1a,").Replace(good)), now, ErrSignature},
		"behind many garbage": {headers("id", timestamp, strings.Repeat("v1,AAAA ", maxSignatures)+good), now, ErrSignature},
	} {
		if _, err := Verify(keys, c.h, body, c.now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := Verify(keys, headers("id", timestamp, "garbage v1 v1a,! "+good), body, now); err != nil {
		t.Errorf("garbage before the signature: %v", err)
	}
}

func TestParseKey_refusesWithoutRepeating(t *testing.T) {
	secret := strings.Repeat("c2VjcmV0", 3)
	for _, s := range []string{
		"", "hunter2", "whsec_", "whsec_!!" + secret, "whsec_c2VjcmV0", "whsec_" + strings.Repeat(secret, 4), "whsk_" + secret, "whpk_" + secret,
		"WHSEC_" + secret, prefixPrivate + base64.StdEncoding.EncodeToString(make([]byte, 64)),
	} {
		k, err := ParseKey(s)
		if err == nil {
			t.Errorf("%q is a key: %v", s, k)
		} else if strings.Contains(err.Error(), "c2Vj") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q is shown: %v", s, err)
		}
	}
	for _, s := range []string{"whsec_" + secret + secret, NewSecret(), NewPrivate()} {
		k := parse(t, s)[0]
		for _, shown := range []string{fmt.Sprint(k), fmt.Sprintf("%+v %#v %x %s", k, k, *k, []*Key{k})} {
			if !strings.HasPrefix(shown, k.Version()+":") || strings.Contains(shown, s[8:20]) {
				t.Errorf("the key prints as %s", shown)
			}
		}
	}
}

// What is put into a file is used within a second; what cannot be read, or is garbage, changes nothing.
func TestKeys_areReadAgain(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c := NewSecret(), NewSecret(), NewPrivate()
	write(one, "# newest first\n\n"+b+"\n")
	write(two, a)
	keys, err := Open(one, two)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	is := func(what string, now time.Time, want ...string) {
		t.Helper()
		if got, want := fmt.Sprint(keys.Current(now)), fmt.Sprint(parse(t, want...)); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	is("at first", now, b, a)
	write(one, c+"\n"+b+"\n")
	is("within the second", now, b, a)
	is("after it", now.Add(2*reread), c, b, a)
	write(one, "garbage")
	is("garbage", now.Add(4*reread), c, b, a)
	if err := os.Remove(one); err != nil {
		t.Fatal(err)
	}
	is("no file", now.Add(6*reread), c, b, a)
	write(one, c)
	is("mended", now.Add(8*reread), c, a)
	for text, want := range map[string]string{"": "holds no key", "# x\nwhsec_x": "line 2", strings.Repeat("#", maxFile+1): "larger"} {
		write(one, text)
		if _, err := Open(one); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
}

// A public key in place of the private one would leave requests unsigned.
func TestOpenToSign_publicKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	own := parse(t, NewPrivate())
	if err := WriteFile(path, own); err != nil {
		t.Fatal(err)
	}
	keys, err := OpenToSign(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(own[0].Public()), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := keys.Current(time.Now().Add(2 * reread)); len(got) != 1 || !got[0].Signs() {
		t.Errorf("signs by %v after a public key was put there", got)
	}
	if _, err := OpenToSign(path); err == nil || !strings.Contains(err.Error(), path+" holds a public key") {
		t.Error(err)
	}
	if _, err := Open(path); err != nil {
		t.Error("to verify:", err)
	}
}

// A signature costs its own text and nothing of the body's size.
func TestSign_copiesNoBody(t *testing.T) {
	body := make([]byte, 8<<20)
	for _, k := range parse(t, NewSecret(), NewPrivate()) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Sign([]*Key{k}, "id", time.Unix(1, 0), body)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: %d bytes for a signature of 8 MiB", k.Version(), took)
		}
	}
}

func FuzzVerify(f *testing.F) {
	keys := parse(f, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_"+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	now := time.Unix(1614265330, 0)
	f.Add("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", []byte(`{"test": 2432232314}`))
	f.Add("x", "1614265330", "v1a,AAAA v1, ,, v1a", []byte{})
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		k, err := Verify(keys, headers(id, timestamp, signature), body, now)
		if err != nil {
			return
		}
		seconds, _ := strconv.ParseInt(timestamp, 10, 64)
		if _, want := Sign([]*Key{k}, id, time.Unix(seconds, 0), body); !strings.Contains(signature, want) {
			t.Errorf("accepted: %q %q %q %q", id, timestamp, signature, body)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Add("whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	f.Add("whpk_AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKey(s)
		if err == nil && !k.Signs() && k.Public() == "" {
			t.Errorf("%q is a key for nothing", s)
		}
	})
}
