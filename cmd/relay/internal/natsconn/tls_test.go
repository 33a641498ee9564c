package natsconn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/relaymq/relay/internal/natstest/embedded"
)

// certificate makes a certificate for 127.0.0.1 that is its own authority.
func certificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func write(t *testing.T, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func writeCA(t *testing.T) string {
	_, ca := certificate(t)
	return write(t, ca)
}

func TestConnect_tls(t *testing.T) {
	cert, ca := certificate(t)
	s := embedded.Start(t, func(o *server.Options) {
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
		o.DontListen, o.TLSTimeout = false, 5
	})
	c := connect(t, Config{URL: s.URL(), CA: write(t, ca)})
	if _, err := c.TLSConnectionState(); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(t.Context(), Config{URL: s.URL(), CA: writeCA(t)}); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Fatalf("another authority: %v", err)
	}
	if _, err := Connect(t.Context(), Config{URL: strings.Replace(s.URL(), "nats:", "tls:", 1)}); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Fatalf("the system's authorities: %v", err)
	}
}
