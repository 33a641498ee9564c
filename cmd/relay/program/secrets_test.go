package program

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/relaymq/relay/internal/natstest"
)

func (w *world) put(name, text string) string {
	w.t.Helper()
	name = filepath.Join(w.dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return name
}

// pemPair makes a certificate of that name, and its key.
func pemPair(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// The certificate of a handler was read when its route began, and a renewed one was nothing that differs.
func TestReload_regressionRenewedCertificatesOfHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	clients := make(chan string, 100)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		clients <- r.TLS.PeerCertificates[0].Subject.CommonName
	}))
	hook.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	hook.StartTLS()
	defer hook.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	ca := w.put("ca.pem", authority)
	cert, key := pemPair(t, "one")
	w.put("cert.pem", cert)
	w.put("key.pem", key)
	yaml := "nats: {url: \"" + w.s.URL() + `"}
routes: [{name: a, subjects: [orders.a], start: all, handler: {http: {url: "` + hook.URL + `", tls: {ca: ca.pem, cert: cert.pem, key: key.pem}}}}]
`
	w.configure(yaml)
	p := w.run()
	client := func(want string) {
		t.Helper()
		w.publish("orders.a", []byte("{}"), nil)
		select {
		case name := <-clients:
			if name != want {
				t.Errorf("the certificate of %s, want %s", name, want)
			}
		case <-time.After(patience):
			t.Fatal("the message is not handled")
		}
	}
	client("one")

	// Half of the new pair is refused, and what was there before goes on.
	cert, key = pemPair(t, "two")
	w.put("cert.pem", cert)
	rep := w.reloaded(1)
	if text := strings.Join(rep.Faults, "\n"); rep.Outcome != "refused" || !strings.Contains(text, `tls.cert "cert.pem" and tls.key "key.pem"`) || !strings.Contains(text, "route a") {
		t.Errorf("%+v", rep)
	}
	w.put("ca.pem", "-----BEGIN CERTIFICATE-----\nMI")
	if rep = w.reloaded(1); !strings.Contains(strings.Join(rep.Faults, "\n"), "tls.ca: ca.pem") {
		t.Errorf("%+v", rep)
	}
	client("one")

	w.put("key.pem", key)
	if err := os.WriteFile(ca, []byte(authority), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := must(t, w.dir, "reload"); !strings.Contains(out, "changed live: a\n") {
		t.Errorf("reload:\n%s", out)
	}
	client("two")
	if out := must(t, w.dir, "reload"); !strings.Contains(out, "nothing differs") {
		t.Errorf("reload:\n%s", out)
	}

	// reload.watch takes them, too.
	w.configure(yaml + "reload: {watch: 1s}\n")
	must(t, w.dir, "reload")
	before := len(p.logged("the configuration was reloaded"))
	cert, key = pemPair(t, "three")
	w.put("cert.pem", cert)
	w.put("key.pem", key)
	natstest.Eventually(t, "the renewed pair is taken", func() bool { return len(p.logged("the configuration was reloaded")) > before })
	client("three")
}

// What the connection to NATS says of itself was read when it was made, and a renewed file was nothing that differs.
func TestReload_regressionRenewedCredentials(t *testing.T) {
	t.Parallel()
	var public, seeds []string
	for range 2 {
		kp, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		name, _ := kp.PublicKey()
		seed, _ := kp.Seed()
		public, seeds = append(public, name), append(seeds, string(seed))
	}
	w := newWorld(t, "", natstest.WithConfig(fmt.Sprintf(`no_auth_user: test
		authorization {users: [{user: test, password: test}, {nkey: %s}, {nkey: %s}]}`, public[0], public[1])))
	file := w.put("seed", seeds[0])
	w.configure("nats: {url: \"" + w.s.URL() + `", nkey: seed}
routes: [{name: a, subjects: [orders.a], start: all, handler: {forward: {subject: out.a}}}]
`)
	if _, err := w.s.JetStream(t).CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}}); err != nil {
		t.Fatal(err)
	}
	p := w.run()
	users := func() (names []string) {
		return slices.DeleteFunc(w.s.Look().Users, func(name string) bool { return name == "test" })
	}
	if got := users(); !slices.Equal(got, public[:1]) {
		t.Fatalf("connected as %v", got)
	}
	w.put("other", seeds[0]) // for the commands
	w.put("seed", seeds[1][:30])
	rep := w.reloaded(1, "--set", "nats.nkey=other")
	if text := strings.Join(rep.Faults, "\n"); rep.Outcome != "refused" || !strings.Contains(text, `nats.nkey: the file "seed"`) || strings.Contains(text, seeds[1][:30]) {
		t.Errorf("%+v", rep)
	}
	w.arrives("orders.a", "out.a")
	if err := os.WriteFile(file, []byte(seeds[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if rep = w.reloaded(0); !slices.Equal(rep.Live, []string{"nats.nkey"}) || len(rep.Changed)+len(rep.NeedsRestart) != 0 {
		t.Errorf("%+v", rep)
	}
	natstest.Eventually(t, "connected as the new user", func() bool { return slices.Equal(users(), public[1:]) })
	w.arrives("orders.a", "out.a")
	if out := must(t, w.dir, "reload"); !strings.Contains(out, "nothing differs") {
		t.Errorf("reload:\n%s", out)
	}
	if n := len(p.logged("connected to NATS again")); n != 1 {
		t.Errorf("%d times connected again", n)
	}
}
