package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/webhook"
)

// writeKey writes a new key to a file of its own, and returns its name.
func writeKey() (string, error) {
	f, err := os.CreateTemp("", "relay-bench-key-")
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintln(f, webhook.NewSecret())
	return f.Name(), errors.Join(err, f.Close())
}

// endpoint is the peer of a webhook.
type endpoint struct {
	*process
	key string
}

// endpoint starts the peer, and writes down what is to be known of it.
func (h *handlerSpec) endpoint(ctx context.Context) (*endpoint, error) {
	p, err := play(ctx, "endpoint", h)
	if err != nil {
		return nil, err
	}
	if err = p.hear(&h.URL, 10*time.Second); err == nil && h.Signed {
		h.Key, err = writeKey()
	}
	e := &endpoint{p, h.Key}
	if err != nil {
		e.end()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) end() {
	e.stop(nil)
	_ = os.Remove(e.key)
}

// post is a webhook by hand: a request for each message, signed where the job says so.
func (t *turn) post() (func(subject string, body []byte) error, error) {
	send, err := t.sender("application/octet-stream")
	if err != nil {
		return nil, err
	}
	return func(_ string, body []byte) error {
		_, n := stampOf(body)
		if err := send(strconv.FormatUint(n, 10), body); err != nil {
			return err
		}
		t.count()
		return nil
	}, nil
}

// sender sends bodies to the endpoint, each under an id.
func (t *turn) sender(contentType string) (func(id string, body []byte) error, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: t.Concurrency, DisableCompression: true}
	if t.Handler.H2 {
		transport.ForceAttemptHTTP2, transport.TLSClientConfig = true, &tls.Config{InsecureSkipVerify: true}
	}
	client := &http.Client{Transport: transport}
	var key []byte
	if t.Handler.Signed {
		text, err := os.ReadFile(t.Handler.Key)
		if err != nil {
			return nil, err
		}
		if key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(text)), "whsec_")); err != nil {
			return nil, err
		}
	}
	return func(id string, body []byte) error {
		req, err := http.NewRequest(http.MethodPost, t.Handler.URL, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", contentType)
		if key != nil {
			at := strconv.FormatInt(time.Now().Unix(), 10)
			mac := hmac.New(sha256.New, key)
			_, _ = io.WriteString(mac, id+"."+at+".")
			_, _ = mac.Write(body)
			req.Header.Set("Webhook-Id", id)
			req.Header.Set("Webhook-Timestamp", at)
			req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode/100 != 2 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}, nil
}
