package natsconn

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/natstest/embedded"
)

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func secretIn(t *testing.T, name string) handler.Secret {
	t.Helper()
	s, err := handler.SecretFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A password and a token in files were read once: with the new ones in the files relay was refused for ever.
func TestConn_regressionPasswordAndTokenAreReadAgain(t *testing.T) {
	for _, what := range []string{"password", "token"} {
		t.Run(what, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "secret")
			put(t, name, "one\n")
			format := "authorization {users: [{user: relay, password: %s}]}"
			if what == "token" {
				format = "authorization {token: %s}"
			}
			s := natstest.Start(t, natstest.WithConfig(fmt.Sprintf(format, "one")))
			var log lines
			cfg := Config{URL: s.URL(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			if what == "token" {
				cfg.Token = secretIn(t, name)
			} else {
				cfg.User, cfg.Password = handler.SecretText("relay"), secretIn(t, name)
			}
			c := connect(t, cfg)
			// A file that is gone: what it held is used on, and the log says so.
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			s.Restart()
			natstest.Eventually(t, "back with the secret of before", func() bool { return c.Reconnects() == 1 && c.Ready() == nil })
			if text := log.String(); !strings.Contains(text, "nats."+what) || !strings.Contains(text, name) || strings.Contains(text, "one") {
				t.Errorf("log:\n%s", text)
			}
			put(t, name, "two\n")
			s.Configure(fmt.Sprintf(format, "two"))
			s.Restart()
			natstest.Eventually(t, "back with the new secret", func() bool { return c.Reconnects() == 2 && c.Ready() == nil })
		})
	}
}

// pemPair is a certificate and its key as files have them.
func pemPair(t *testing.T) (cert, key string) {
	t.Helper()
	pair, certPEM := certificate(t)
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(certPEM), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// A renewed certificate is used by the next connection. While its key is not there yet, the pair of before is used on.
func TestConn_certificateIsReadAgain(t *testing.T) {
	serverPair, ca := certificate(t)
	dir := t.TempDir()
	certFile, keyFile, caFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	oneCert, oneKey := pemPair(t)
	twoCert, twoKey := pemPair(t)
	put(t, certFile, oneCert)
	put(t, keyFile, oneKey)
	put(t, caFile, string(ca))
	seen := make(chan string, 100)
	s := embedded.Start(t, func(o *server.Options) {
		o.DontListen, o.TLSTimeout = false, 5
		o.TLSConfig = &tls.Config{
			Certificates: []tls.Certificate{serverPair}, ClientAuth: tls.RequireAnyClientCert,
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				seen <- string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw[0]}))
				return nil
			},
		}
	})
	var log lines
	c := connect(t, Config{URL: s.URL(), CA: caFile, Cert: certFile, Key: keyFile, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if <-seen != oneCert {
		t.Fatal("not the certificate of the file")
	}
	put(t, certFile, twoCert) // half of the new pair
	put(t, caFile, "-----BEGIN CERT")
	if err := c.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), certFile) || !strings.Contains(err.Error(), "nats.tls.key") || !strings.Contains(err.Error(), caFile) {
		t.Errorf("half a pair: %v", err)
	}
	s.Restart()
	natstest.Eventually(t, "back with the pair of before", func() bool { return c.Reconnects() == 1 && c.Ready() == nil })
	if <-seen != oneCert {
		t.Error("another certificate than before")
	}
	for _, want := range []string{"nats.tls.cert", certFile, "nats.tls.key", keyFile, "nats.tls.ca", caFile} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
	put(t, keyFile, twoKey)
	put(t, caFile, string(ca))
	for range 2 { // the second time nothing has changed
		if err := c.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.Reconnects() > 2 || c.Ready() != nil {
			t.Errorf("%d reconnects, %v", c.Reconnects(), c.Ready())
		}
	}
	if trial, again := <-seen, <-seen; trial != twoCert || again != twoCert || len(seen) != 0 {
		t.Error("not the renewed certificate, once to try it and once to use it")
	}
}

// Renew keeps a connection that works when the server does not accept what the file holds now.
func TestConn_renewTriesFirst(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	put(t, name, "one")
	s := natstest.Start(t, natstest.WithConfig("authorization {users: [{user: relay, password: one}]}"))
	c := connect(t, Config{URL: s.URL(), User: handler.SecretText("relay"), Password: secretIn(t, name)})
	put(t, name, "other")
	if err := c.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "nats.password") || strings.Contains(err.Error(), "other") {
		t.Errorf("%v", err)
	}
	if c.Reconnects() != 0 || c.Ready() != nil {
		t.Errorf("%d reconnects, %v", c.Reconnects(), c.Ready())
	}
}

func TestReadCreds_refusesWhatIsNoneNow(t *testing.T) {
	user, _ := nkeys.CreateUser()
	seed, _ := user.Seed()
	name := filepath.Join(t.TempDir(), "user.creds")
	for text, want := range map[string]string{
		"":                     "holds no NKey seed",
		string(seed):           "holds no JWT",
		string(seed[:20]):      "holds no NKey seed",
		"-----BEGIN NATS USER": "holds no NKey seed",
	} {
		put(t, name, text)
		if _, _, err := readCreds(name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), string(seed)) {
			t.Errorf("%.10s…: %v", text, err)
		}
	}
}
