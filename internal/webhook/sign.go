package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Tolerance is how far a request's time may be from the receiver's, either way.
const Tolerance = 5 * time.Minute

// The headers, as net/http spells them.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// Sign returns the values of the headers webhook-timestamp and webhook-signature, with one signature by each key, in their order. The
// id must hold no dot. The body is hashed where it lies.
func Sign(keys []*Key, id string, now time.Time, body []byte) (timestamp, signature string) {
	var room [64]byte
	head := append(append(room[:0], id...), '.')
	at := len(head)
	head = strconv.AppendInt(head, now.Unix(), 10)
	timestamp = string(head[at:])
	head = append(head, '.')
	out := make([]byte, 0, 96*len(keys))
	for _, k := range keys {
		if !k.Signs() {
			continue
		}
		if len(out) > 0 {
			out = append(out, ' ')
		}
		out = k.signs.appendSignature(out, head, body)
	}
	return timestamp, string(out)
}

// Why a request is refused, for errors.Is.
var (
	ErrUnsigned  = errors.New("not signed")
	ErrTime      = errors.New("its time is not now")
	ErrSignature = errors.New("no signature is by a key of this receiver")
)

// Verify returns the key by which one of the signatures was made. Only keys are trusted, and only a time within [Tolerance] of now.
func Verify(keys []*Key, h http.Header, body []byte, now time.Time) (*Key, error) {
	id, timestamp, signatures := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	for _, p := range []struct{ name, value string }{{"webhook-id", id}, {"webhook-timestamp", timestamp}, {"webhook-signature", signatures}} {
		if p.value == "" {
			return nil, fmt.Errorf("%w: there is no %s header", ErrUnsigned, p.name)
		}
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != timestamp {
		return nil, fmt.Errorf("%w: webhook-timestamp is no number of seconds", ErrTime)
	}
	// In seconds: far enough from now a difference of times saturates, or worse.
	if apart := now.Unix() - seconds; seconds < 0 || apart > int64(Tolerance/time.Second) || apart < -int64(Tolerance/time.Second) {
		return nil, fmt.Errorf("%w: webhook-timestamp is more than %v away", ErrTime, Tolerance)
	}
	head := []byte(id + "." + timestamp + ".")
	var whole []byte // for the ed25519 of the standard library
	for n, s := range strings.Fields(signatures) {
		if n == maxSignatures {
			break
		}
		version, code, _ := strings.Cut(s, ",")
		given, err := base64.StdEncoding.Strict().DecodeString(code)
		if err != nil {
			continue
		}
		for _, k := range keys {
			switch {
			case version != k.Version():
			case k.public != nil:
				if whole == nil {
					whole = append(append(whole, head...), body...)
				}
				if ed25519.Verify(k.public, whole, given) {
					return k, nil
				}
			default:
				m := k.signs.(*shared).hashes.Get().(*mac)
				same := hmac.Equal(given, m.of(head, body))
				k.signs.(*shared).hashes.Put(m)
				if same {
					return k, nil
				}
			}
		}
	}
	return nil, ErrSignature
}

// maxSignatures is how many signatures of a request are looked at: verifying one costs the receiver more than making it up costs a
// stranger.
const maxSignatures = 16
