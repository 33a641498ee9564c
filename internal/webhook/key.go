package webhook

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"

	"crypto/hmac"

	"filippo.io/edwards25519"
)

// The beginnings of keys as text.
const (
	prefixSecret  = "whsec_"
	prefixPrivate = "whsk_"
	prefixPublic  = "whpk_"
)

// Bounds of a shared secret, by the specification.
const (
	minSecret = 24
	maxSecret = 64
	newSecret = 32
)

// Key signs, verifies, or both. It prints as its fingerprint, with any verb of fmt.
type Key struct {
	text    string
	secret  []byte             // whsec_
	private ed25519.PrivateKey // whsk_
	public  ed25519.PublicKey  // whsk_ and whpk_
	signs   signer             // nil for whpk_
}

// signer makes the signature of one version.
type signer interface {
	// appendSignature appends "<version>,<base64>".
	appendSignature(to, head, body []byte) []byte
}

// ParseKey reads one key. The error does not repeat any of it.
func ParseKey(s string) (*Key, error) {
	kind, raw := "", ""
	for _, p := range []string{prefixSecret, prefixPrivate, prefixPublic} {
		if rest, ok := strings.CutPrefix(s, p); ok {
			kind, raw = p, rest
		}
	}
	if kind == "" {
		return nil, errors.New("is no webhook key: it must begin with whsec_, whsk_ or whpk_")
	}
	b, err := base64.StdEncoding.DecodeString(raw)
	if err != nil {
		return nil, fmt.Errorf("is no webhook key: what follows %s is not standard base64", kind)
	}
	switch {
	case kind == prefixSecret && (len(b) < minSecret || len(b) > maxSecret):
		return nil, fmt.Errorf("a whsec_ key has %d to %d bytes (this one has %d)", minSecret, maxSecret, len(b))
	case kind == prefixSecret:
		return &Key{text: s, secret: b, signs: newHMAC(b)}, nil
	case kind == prefixPrivate && len(b) == ed25519.SeedSize:
		b = ed25519.NewKeyFromSeed(b)
	case kind == prefixPrivate && len(b) != ed25519.PrivateKeySize:
		return nil, fmt.Errorf("a whsk_ key has %d bytes, or %d with its public key (this one has %d)", ed25519.SeedSize, ed25519.PrivateKeySize, len(b))
	case kind == prefixPublic && len(b) != ed25519.PublicKeySize:
		return nil, fmt.Errorf("a whpk_ key has %d bytes (this one has %d)", ed25519.PublicKeySize, len(b))
	case kind == prefixPublic:
		return &Key{text: s, public: b}, nil
	}
	private := ed25519.PrivateKey(b)
	if !private.Equal(ed25519.NewKeyFromSeed(private.Seed())) {
		return nil, errors.New("the public half of the whsk_ key is not that of its private half")
	}
	k := &Key{text: s, private: private, public: private.Public().(ed25519.PublicKey)}
	k.signs = newEd25519(k.private)
	return k, nil
}

// NewSecret makes a shared secret: whsec_….
func NewSecret() string {
	b := make([]byte, newSecret)
	_, _ = rand.Read(b) // never fails, by its documentation
	return prefixSecret + base64.StdEncoding.EncodeToString(b)
}

// NewPrivate makes an ed25519 private key, with its public key in it: whsk_….
func NewPrivate() string {
	_, private, _ := ed25519.GenerateKey(nil) // fails with a reader of one's own only
	return prefixPrivate + base64.StdEncoding.EncodeToString(private)
}

// Signs tells whether the key can sign: a public key cannot.
func (k *Key) Signs() bool { return k.signs != nil }

// Reveal returns the key as text. Call it where a file of keys is written.
func (k *Key) Reveal() string { return k.text }

// Public returns the public key as text, and an empty string for a shared secret.
func (k *Key) Public() string {
	if k.public == nil {
		return ""
	}
	return prefixPublic + base64.StdEncoding.EncodeToString(k.public)
}

// Version is the version of the key's signatures.
func (k *Key) Version() string {
	if k.public != nil {
		return "v1a"
	}
	return "v1"
}

// Fingerprint tells keys apart and gives nothing of them away; a private and its public key have the same.
func (k *Key) Fingerprint() string {
	h := sha256.New()
	_, _ = h.Write([]byte("relay webhook key " + k.Version() + " "))
	_, _ = h.Write(k.secret)
	_, _ = h.Write(k.public)
	return k.Version() + ":" + hex.EncodeToString(h.Sum(nil)[:6])
}

// Format covers every verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.Fingerprint())) }

// shared signs by a secret. Its hashes are kept, since preparing one costs as much as a short body.
type shared struct {
	hashes sync.Pool // *mac
}

type mac struct {
	hash.Hash
	sum [sha256.Size]byte
}

func newHMAC(secret []byte) *shared {
	s := new(shared)
	s.hashes.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	return s
}

func (s *shared) appendSignature(to, head, body []byte) []byte {
	m := s.hashes.Get().(*mac)
	defer s.hashes.Put(m)
	return base64.StdEncoding.AppendEncode(append(to, "v1,"...), m.of(head, body))
}

// of returns the code of head and body, until the next call.
func (m *mac) of(head, body []byte) []byte {
	m.Reset()
	_, _ = m.Write(head)
	_, _ = m.Write(body)
	return m.Sum(m.sum[:0])
}

// own signs by a private key as RFC 8032, 5.1.6, has it. crypto/ed25519 wants the message in one piece, and so a copy of each body;
// the message is only ever hashed, twice, so here it comes in pieces. A test compares every signature with crypto/ed25519.
type own struct {
	scalar *edwards25519.Scalar
	prefix []byte
	public []byte
}

func newEd25519(private ed25519.PrivateKey) *own {
	h := sha512.Sum512(private.Seed())
	scalar, err := edwards25519.NewScalar().SetBytesWithClamping(h[:32])
	if err != nil {
		panic(err) // only for another length
	}
	return &own{scalar: scalar, prefix: h[32:], public: private.Public().(ed25519.PublicKey)}
}

func (o *own) appendSignature(to, head, body []byte) []byte {
	var sum [sha512.Size]byte
	h := sha512.New()
	scalar := func(pieces ...[]byte) *edwards25519.Scalar {
		h.Reset()
		for _, p := range pieces {
			_, _ = h.Write(p)
		}
		s, err := edwards25519.NewScalar().SetUniformBytes(h.Sum(sum[:0]))
		if err != nil {
			panic(err) // only for another length
		}
		return s
	}
	r := scalar(o.prefix, head, body)
	R := new(edwards25519.Point).ScalarBaseMult(r).Bytes()
	k := scalar(R, o.public, head, body)
	S := edwards25519.NewScalar().MultiplyAdd(k, o.scalar, r)
	return base64.StdEncoding.AppendEncode(append(to, "v1a,"...), append(R, S.Bytes()...))
}
