package http

import (
	"context"
	"fmt"
	"net"
	nethttp "net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

func guardOf(t testing.TB, e Egress, who strictness) *guard {
	t.Helper()
	g, err := e.guard(who, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Every range that must not be reached by a webhook, its first and last address, and the forms in which IPv4 hides in IPv6. What is
// private is allowed when the operator alone has chosen the host.
func TestEgress_ranges(t *testing.T) {
	operator, messages := guardOf(t, Egress{}, ofOperator), guardOf(t, Egress{}, ofMessages)
	for s, isPrivate := range map[string]bool{
		"0.0.0.0/8": false, "10.0.0.0/8": true, "100.64.0.0/10": true, "100.100.100.200/32": false, "127.0.0.0/8": true, "168.63.129.16/32": false,
		"169.254.0.0/16": false, "172.16.0.0/12": true, "192.0.0.0/24": false, "192.0.2.0/24": false, "192.88.99.0/24": false,
		"192.168.0.0/16": true, "198.18.0.0/15": true, "198.51.100.0/24": false, "203.0.113.0/24": false, "224.0.0.0/4": false,
		"240.0.0.0/4": false, "255.255.255.255/32": false,

		"::/128": false, "::1/128": true, "::2:0:0/95": false, "64:ff9b:1::/48": false, "100::/64": false, "2001::/32": false, "2001:db8::/32": false,
		"2002::/16": false, "3fff::/20": false, "5f00::/16": false, "fc00::/7": true, "fd00:ec2::254/128": false, "fe80::/10": false,
		"fec0::/10": false, "ff00::/8": false, "4000::/3": false, "2606:4700::5efe:0:0/96": false, "2606:4700::200:5efe:0:0/96": false,
	} {
		p := netip.MustParsePrefix(s).Masked()
		for _, a := range []netip.Addr{p.Addr(), last(p)} {
			// The ends of one range may lie in a narrower one that is refused.
			if err := messages.judge(a); err == nil {
				t.Errorf("%s: %v is allowed to a message", s, a)
			}
			if err := operator.judge(a); (err == nil) != isPrivate {
				t.Errorf("%s: %v for the operator: %v", s, a, err)
			}
		}
		if p.Addr().Is4() {
			for name, a := range hidden(p.Addr()) {
				if err := messages.judge(a); err == nil {
					t.Errorf("%s: %v, which is %v as %s, is allowed to a message", s, a, p.Addr(), name)
				}
				if err := operator.judge(a); err == nil && !isPrivate {
					t.Errorf("%s: %v, which is %v as %s, is allowed to the operator", s, a, p.Addr(), name)
				}
			}
		}
	}
	for _, s := range []string{
		"1.1.1.1", "169.253.255.255", "169.255.0.0", "172.32.0.0", "100.128.0.0", "2606:4700::1", "2a00::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2001:4860::8888",
	} {
		for _, g := range []*guard{operator, messages} {
			if err := g.judge(netip.MustParseAddr(s)); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
	for _, s := range []string{"fe80::1%eth0", "::ffff:169.254.169.254%eth0", "ff02::1%lo"} {
		if err := operator.check(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(s), 80).String()); err == nil {
			t.Errorf("%s is allowed", s)
		}
	}
	if err := operator.check(t.Context(), "metadata:80"); err == nil {
		t.Error("what is no address is allowed")
	}
}

// last is the last address of a range.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// hidden are the forms in which an IPv4 address can stand in an IPv6 one.
func hidden(a netip.Addr) map[string]netip.Addr {
	v4 := a.As4()
	form := func(prefix string, at int) netip.Addr {
		b := netip.MustParseAddr(prefix).As16()
		copy(b[at:], v4[:])
		return netip.AddrFrom16(b)
	}
	inverted := netip.MustParseAddr("2001:0:101:101::").As16()
	for i, x := range v4 {
		inverted[12+i] = ^x
	}
	return map[string]netip.Addr{
		"mapped": form("::ffff:0:0", 12), "compatible": form("::", 12), "NAT64": form("64:ff9b::", 12), "local NAT64": form("64:ff9b:1::", 12),
		"6to4": form("2002::1", 2), "Teredo server": form("2001::", 4), "Teredo client": netip.AddrFrom16(inverted),
		"ISATAP": form("2606:4700::5efe:0:0", 12), "ISATAP of a global one": form("2606:4700::200:5efe:0:0", 12),
	}
}

// Whatever form an address that is refused hides in, it is refused, also when it is refused by the configuration.
func TestEgress_noFormHidesAnAddress(t *testing.T) {
	g := guardOf(t, Egress{Deny: []string{"1.2.3.0/24"}, Allow: []string{"0.0.0.0/0", "::/0", "2002::/16", "2001::/32", "64:ff9b:1::/48"}}, ofMessages)
	rapid.Check(t, func(t *rapid.T) {
		a := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
		if rapid.Bool().Draw(t, "denied") {
			a = netip.AddrFrom4([4]byte{1, 2, 3, a.As4()[3]})
		}
		if g.judge(a) == nil {
			return
		}
		for name, f := range hidden(a) {
			if name != "local NAT64" && g.judge(f) == nil {
				t.Fatalf("%v is refused, and allowed as %v (%s)", a, f, name)
			}
		}
	})
}

func TestEgress_lists(t *testing.T) {
	for _, c := range []struct {
		e       Egress
		who     strictness
		address string
		want    string // in the error; empty: allowed
	}{
		{Egress{Deny: []string{"10.0.0.0/8"}}, ofOperator, "10.1.2.3", "egress.deny"},
		{Egress{Deny: []string{"10.0.0.0/8"}}, ofOperator, "64:ff9b::a01:203", "egress.deny"},
		{Egress{Deny: []string{"10.0.0.0/8"}}, ofOperator, "11.1.2.3", ""},
		{Egress{Allow: []string{"10.0.0.0/8"}}, ofOperator, "11.1.2.3", "not in egress.allow"},
		{Egress{Allow: []string{"10.0.0.0/8"}}, ofMessages, "10.1.2.3", ""},
		{Egress{Allow: []string{"10.0.0.0/8"}, Deny: []string{"10.1.2.3"}}, ofMessages, "10.1.2.3", "egress.deny"},
		{Egress{Allow: []string{"10.0.0.0/8"}}, ofMessages, "64:ff9b::a01:203", ""},
		// A wide entry does not open what lies in it.
		{Egress{Allow: []string{"0.0.0.0/0", "::/0"}}, ofOperator, "169.254.169.254", "metadata"},
		{Egress{Allow: []string{"0.0.0.0/0"}}, ofMessages, "127.0.0.1", "loopback"},
		{Egress{Allow: []string{"100.64.0.0/10"}}, ofMessages, "100.100.100.200", "metadata"},
		{Egress{Allow: []string{"100.64.0.0/10"}}, ofMessages, "100.100.100.201", ""},
		{Egress{Allow: []string{"169.254.10.0/24"}}, ofOperator, "169.254.10.1", ""},
		{Egress{Allow: []string{"::1"}}, ofMessages, "::1", ""},
		{Egress{Allow: []string{"fd00:1::/32"}}, ofMessages, "fd00:1::1", ""},
		{Egress{Allow: []string{"::/0"}}, ofOperator, "ff02::1", "no global"},
	} {
		err := guardOf(t, c.e, c.who).judge(netip.MustParseAddr(c.address))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %s: %v, want %q", c.e, c.address, err, c.want)
		}
	}
}

// Addresses that the operator wrote: refused when dialling, in any of their forms.
func TestHandle_refusedAddresses(t *testing.T) {
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fe80::1%25lo]", "100.100.100.200", "0.0.0.0", "[::]", "[::ffff:a9fe:a9fe]"} {
		err := newHandler(t, Config{URL: "http://" + host}).Handle(t.Context(), message())
		handlertest.Want(t, err, handlertest.NoAnswer, "connect: ", "refused: ")
	}
	// What some resolvers read as an address gets as far as no resolver.
	for _, host := range []string{"2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "127.1", "0x7f.1", "127.0.0.1.", "0x"} {
		if _, err := New(Config{URL: "http://" + host}, 1); err == nil || !strings.Contains(err.Error(), "has a number as its host") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// A name is judged by what it resolves to, each address of it.
func TestHandle_refusedByResolution(t *testing.T) {
	var asked int
	s := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { asked++ })
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	to := "http://localhost:" + port // ::1 and 127.0.0.1, or one of them
	err := newHandler(t, Config{URL: to, Egress: Egress{Deny: []string{"127.0.0.0/8", "::1"}}}).Handle(t.Context(), message())
	handlertest.Want(t, err, handlertest.NoAnswer, "is in egress.deny")
	if asked != 0 {
		t.Errorf("%d requests", asked)
	}
	handlertest.Want(t, newHandler(t, Config{URL: to}).Handle(t.Context(), message()), handlertest.Ack)
}

// relay's own listeners are refused by any address of theirs, and whatever the lists say.
func TestHandle_ownListeners(t *testing.T) {
	var asked int
	s := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { asked++ })
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, own := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		h := newHandler(t, Config{
			URL: s.URL, Egress: Egress{Allow: []string{"127.0.0.1"}}, Own: func() []string { return []string{"bad", "127.0.0.1:1", own} },
		})
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.NoAnswer, "belongs to relay itself")
	}
	h := newHandler(t, Config{URL: s.URL, Own: func() []string { return []string{"nowhere.invalid:" + port} }})
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.NoAnswer, "cannot tell")
	if asked != 0 {
		t.Errorf("%d requests", asked)
	}
	h = newHandler(t, Config{URL: s.URL, Own: func() []string { return []string{"0.0.0.0:1", "nowhere.invalid:1"} }})
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	if !ofThisHost(netip.MustParseAddr("127.0.0.1")) || ofThisHost(netip.MustParseAddr("1.1.1.1")) {
		t.Error("ofThisHost")
	}
}

// The proxy of the configuration gets every request, and that of the environment none.
func TestHandle_proxy(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "ALL_PROXY", "http_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	got := make(chan string, 1)
	proxy := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		got <- r.RequestURI + " " + r.Header.Get("Proxy-Authorization")
	})
	h := newHandler(t, Config{URL: "http://hook.invalid/a", Proxy: strings.Replace(proxy.URL, "http://", "http://me:canary@", 1)})
	if !handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack) {
		return
	}
	if s := <-got; s != "http://hook.invalid/a Basic bWU6Y2FuYXJ5" {
		t.Error(s)
	}
	for want, c := range map[string]Config{
		"proxy: must be a URL":           {URL: "http://h", Proxy: "canary:3128"},
		"egress: has no effect":          {URL: "http://h", Proxy: "http://p:1", Egress: Egress{Deny: []string{"1.1.1.1"}}},
		"url: refused: 169.254.169.254 ": {URL: "http://169.254.169.254", Proxy: "http://p:1"},
		"url: a message chooses part":    {URL: "http://{1}.h", Proxy: "http://p:1", Egress: Egress{Allow: []string{"1.1.1.1"}}},
		"egress.deny[0]: must be":        {URL: "http://h", Egress: Egress{Deny: []string{"h"}}},
		"egress.allow[1]: write":         {URL: "http://h", Egress: Egress{Allow: []string{"::1", "::ffff:1.1.1.1"}}},
		"egress.allow[0]: \"10.1.0.0/8":  {URL: "http://h", Egress: Egress{Allow: []string{"10.1.0.0/8"}}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestHandle_templates(t *testing.T) {
	got := make(chan string, 1)
	proxy := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) { got <- r.RequestURI })
	h := newHandler(t, Config{
		URL: "http://{2}.hooks.example.com:8080/v1/{3}/x{1}?s={subject}&t=%20", Hosts: []string{"*.hooks.example.com"}, Proxy: proxy.URL,
	})
	for subj, want := range map[string]string{
		"orders.Acme-1.eu": "http://acme-1.hooks.example.com:8080/v1/eu/xorders?s=orders.Acme-1.eu&t=%20",
		"a/b?c#.acme.%2e&": "http://acme.hooks.example.com:8080/v1/%252e%26/xa%2Fb%3Fc%23?s=a%2Fb%3Fc%23.acme.%252e%26&t=%20",
		"orders.acme.&x=1#é\x01": "http://acme.hooks.example.com:8080/v1/%26x%3D1%23%C3%A9%01/xorders?" +
			"s=orders.acme.%26x%3D1%23%C3%A9%01&t=%20",
	} {
		m := message()
		m.Subject = subj
		err := h.Handle(t.Context(), m)
		if !handlertest.Want(t, err, handlertest.Ack) {
			continue
		}
		if uri := <-got; uri != want {
			t.Errorf("%q: %s, want %s", subj, uri, want)
		}
	}
	for subj, want := range map[string]string{
		"orders.acme":          "has no token {3}",
		"orders.a_b.eu":        "letters, digits and hyphens",
		"orders.evil%2Ecom.eu": "letters, digits and hyphens",
		"orders.acme@evil.eu":  "letters, digits and hyphens",
		"orders.evil:80.eu":    "letters, digits and hyphens",
		"orders.é.eu":          "letters, digits and hyphens",
		"orders.-a.eu":         "hyphen",
		"orders." + strings.Repeat("a", 64) + ".x": "longer than 63",
	} {
		m := message()
		m.Subject = subj
		handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Dead, "cannot make a URL for this subject", want)
	}
	// Without a proxy, what a message chooses does not reach private addresses; an allow list opens them.
	c := Config{URL: proxy.URL[:len("http://")] + "{1}" + strings.TrimPrefix(proxy.URL, "http://127.0.0.1"), Hosts: []string{"localhost"}}
	m := message()
	m.Subject = "localhost"
	handlertest.Want(t, newHandler(t, c).Handle(t.Context(), m), handlertest.Retry, "is loopback")
	c.Egress.Allow = []string{"127.0.0.0/8", "::1"}
	if handlertest.Want(t, newHandler(t, c).Handle(t.Context(), m), handlertest.Ack) {
		<-got
	}
	m.Subject = "other"
	handlertest.Want(t, newHandler(t, c).Handle(t.Context(), m), handlertest.Dead, "the host other is not in hosts")
}

func TestConfig_templates(t *testing.T) {
	allow := Egress{Allow: []string{"1.1.1.1"}}
	for want, c := range map[string]Config{
		"url: a message chooses part of the host": {URL: "http://{1}.h/"},
		"url: has {subject} in its host":          {URL: "http://{subject}/", Egress: allow},
		"url: has a placeholder in its user info": {URL: "http://{1}:canary@h/"},
		"url: must begin with":                    {URL: "{1}://h/"},
		"url: is not a URL":                       {URL: "http://h:{1}/"},
		"url: has a fragment":                     {URL: "http://h/#{1}"},
		"url: has an unknown placeholder":         {URL: "http://h/{canary}"},
		"url: has an unknown placeholder: use":    {URL: "http://h/{01}"},
		"url: holds { or }":                       {URL: "http://h/}"},
		"url: has a host with a placeholder":      {URL: "http://{1}_x.h/", Egress: allow},
		"url: has a host with a placeholder that no token makes valid: the host has an empty label":   {URL: "http://{1}.h./", Egress: allow},
		"url: has a host with a placeholder that no token makes valid: a label of the host begins":    {URL: "http://-{1}.h/", Egress: allow},
		"url: has a host with a placeholder that no token makes valid: a label of the host begins or": {URL: "http://{1}-.h/", Egress: allow},
		"url: has a host with a placeholder that no token makes valid: a label of the host is longer": {URL: "http://{1}" + strings.Repeat("x", 63) + ".h/", Egress: allow},
		"url: has a host with a placeholder that no token makes valid: the host is a number":          {URL: "http://{1}.1/", Egress: allow},
		"hosts[0]: must be a host name":                     {URL: "http://{1}.h", Hosts: []string{"*x.h"}},
		"hosts[1]: must be a host name":                     {URL: "http://{1}.h", Hosts: []string{"x.h", "x_.h"}},
		"hosts: the host of the url is not in ":             {URL: "http://h", Hosts: []string{"*.h"}},
		"hosts: the url cannot produce any of these hosts":  {URL: "https://{2}.a.com", Hosts: []string{"*.b.com", "a.com", "*.*.a.com"}},
		"hosts: the url cannot produce any of these hosts,": {URL: "https://x-{2}.a.com", Hosts: []string{"x.a.com", "y-z.a.com"}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, c := range []Config{
		{URL: "http://h/{1}?x={subject}"}, {URL: "http://{1}/", Egress: allow}, {URL: "http://{1}.{2}:80/", Hosts: []string{"*.*", "a.b"}},
		{URL: "http://h", Hosts: []string{"H"}}, {URL: "http://x-{1}.a.com", Hosts: []string{"b.com", "X-y.A.com"}}, {URL: "http://placeholder/{1}"}, {URL: "https://me:p%40ss@[2606:4700::1]:80/{1}"},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", c.URL, err)
		}
	}
}

// The host of a URL with placeholders may be written in capitals.
func TestTarget_capitalsInHost(t *testing.T) {
	for url, want := range map[string]string{
		"https://{2}.Hooks.Example.com/A/{1}": "https://acme.hooks.example.com/A/a",
		"https://[fe80::1%25Eth0]/{1}":        "https://[fe80::1%25Eth0]/a",
	} {
		to, err := parseTarget(url)
		if err != nil {
			t.Fatal(err)
		}
		hosts := []string{"*.Hooks.example.com"}
		if got, err := to.expand("a.Acme", hosts); err != nil || got.String() != want {
			t.Errorf("%s: %v %v", url, got, err)
		}
	}
}

// Whatever a subject holds, it changes the text of its places and nothing else of the URL.
func FuzzTarget(f *testing.F) {
	t1, err := parseTarget("https://{2}.hooks.example.com:8443/v1/{3}/x{1}/?a={subject}&b={1}")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"orders.acme.eu", "a/b.c@d.e?f", "a.b.%2e%2e", "a.b...", "a.1.\x00", "é.é.é", "a.b.://@[]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subj string) {
		u, err := t1.expand(subj, []string{"*.hooks.example.com"})
		if err != nil {
			return
		}
		// As the other side reads what is sent.
		again, err := url.ParseRequestURI(u.RequestURI())
		if err != nil {
			t.Fatalf("%q: %v", subj, err)
		}
		host, ok := strings.CutSuffix(u.Host, ".hooks.example.com:8443")
		if !ok || u.Scheme != "https" || u.User != nil || u.Fragment != "" || checkHost(host+".hooks.example.com") != nil || strings.Contains(host, ".") {
			t.Errorf("%q: host %q", subj, u.Host)
		}
		path := again.EscapedPath()
		if strings.Count(path, "/") != 4 || !strings.HasPrefix(path, "/v1/") || !strings.HasSuffix(path, "/") || strings.Contains(path, "/../") || strings.Contains(path, "/./") {
			t.Errorf("%q: path %q", subj, path)
		}
		q := again.Query()
		if len(q) != 2 || q.Get("a") != subj || q.Get("b") != strings.Split(subj, ".")[0] {
			t.Errorf("%q: query %q", subj, again.RawQuery)
		}
	})
}

func ExampleEgress() {
	h, err := New(Config{URL: "http://{1}.internal/", Hosts: []string{"*.internal"}, Egress: Egress{Allow: []string{"10.20.0.0/16"}}}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	m := message()
	m.Subject = "a_b"
	fmt.Println(h.Handle(context.Background(), m))
	// Output: POST: cannot make a URL for this subject: a label of the host may hold letters, digits and hyphens only
}
