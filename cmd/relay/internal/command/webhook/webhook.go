package webhook

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/webhook"
)

// Command is relay webhook.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use: "webhook", Short: "make keys for signed webhooks, verify requests, and listen for them", Args: cli.Args(cli.KnownCommand),
		Long: `Webhook makes the keys that sign the requests of http handlers by Standard Webhooks (https://www.standardwebhooks.com),
verifies requests, and is an endpoint for trying things out. None of it talks to NATS.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newWebhookKeygen(), newWebhookVerify(), newWebhookListen())
	return c
}

func newWebhookKeygen() *cobra.Command {
	var private, retire bool
	var out string
	c := &cobra.Command{
		Use: "keygen", Short: "make a key, add it to a file, or remove old keys", Args: cli.Args(cobra.NoArgs),
		Long: `Keygen prints a new key: a secret that sender and receiver share (whsec_…), or with --ed25519 a private key (whsk_…) and, in a
comment, the public key for the receiver (whpk_…).

With --out it puts the key into a file that only you may read, in front of those that are there, and all of them sign. So keys
rotate without a gap: call keygen with --out, give the receiver the new key, and when the receiver has the key, call keygen with
--out and --retire, which makes no key and leaves only the newest. A running relay uses the file as it is a second later.`,
		Example: `  relay webhook keygen --out hook.key
  relay webhook keygen --out hook.key --retire`,
		RunE: func(c *cobra.Command, _ []string) error {
			if retire && (out == "" || private) {
				return fmt.Errorf("%w: --retire needs --out and excludes --ed25519, because --retire makes no key", cli.ErrUsage)
			}
			newKey := webhook.NewSecret
			if private {
				newKey = webhook.NewPrivate
			}
			if out == "" {
				return printKey(c.OutOrStdout(), keyOf(newKey()))
			}
			keys, err := webhook.ReadFile(out)
			if errors.Is(err, os.ErrNotExist) && !retire {
				err = nil
			}
			if err != nil {
				return err // what is no file of keys is left alone
			}
			if retire {
				keys = keys[:1]
			} else {
				keys = slices.Insert(keys, 0, keyOf(newKey()))
			}
			if err := webhook.WriteFile(out, keys); err != nil {
				return err
			}
			printSigners(c.OutOrStdout(), keys)
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&private, "ed25519", false, "a private key: the receiver needs no secret")
	f.StringVar(&out, "out", "", "put it into this file, as the newest")
	f.BoolVar(&retire, "retire", false, "with --out: make no key, and leave only the newest one in the file")
	_ = c.MarkFlagFilename("out")
	return c
}

// keyOf is a key that was made just now.
func keyOf(text string) *webhook.Key {
	k, err := webhook.ParseKey(text)
	if err != nil {
		panic(err)
	}
	return k
}

func printKey(w io.Writer, k *webhook.Key) error {
	if p := k.Public(); p != "" {
		if _, err := fmt.Fprintln(w, "# "+p); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, k.Reveal())
	return err
}

func printSigners(w io.Writer, keys []*webhook.Key) {
	rows := [][]string{{"KEY", "THE RECEIVER HAS"}}
	for _, k := range keys {
		has := "the same secret"
		if p := k.Public(); p != "" {
			has = p
		}
		rows = append(rows, []string{k.Fingerprint(), has})
	}
	cli.Table(w, rows)
}

// maxRequest bounds the body of a request that is verified.
const maxRequest = 64 << 20

func newWebhookVerify() *cobra.Command {
	var files []string
	var at string
	c := &cobra.Command{
		Use: "verify", Short: "verify a request", Args: cli.Args(cobra.NoArgs),
		Long: `Verify reads one HTTP/1.1 request, head and body, from standard input, and says whether a signature of it is by one of the
keys, and its time within five minutes of now, or of --at. It exits with 1 otherwise.`,
		Example: `  relay webhook verify --key hook.key < request.http
  relay webhook verify --key hook.key --at 2026-01-31T12:00:00Z < request.http`,
		RunE: func(c *cobra.Command, _ []string) error {
			now := time.Now()
			if at != "" {
				var err error
				if now, err = time.Parse(time.RFC3339, at); err != nil {
					return fmt.Errorf("%w: --at: must be a time such as 2026-01-31T12:00:00Z (got %q)", cli.ErrUsage, at)
				}
			}
			keys, err := readKeys(files)
			if err != nil {
				return err
			}
			r, err := http.ReadRequest(bufio.NewReader(c.InOrStdin()))
			if err != nil {
				return fmt.Errorf("standard input is no HTTP/1.1 request: %w", err)
			}
			body, err := readBody(r)
			if err != nil {
				return fmt.Errorf("the request's body: %w", err)
			}
			by, err := webhook.Verify(keys, r.Header, body, now)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "signed by %s: %s, %d bytes\n", by.Fingerprint(), cli.Printable(r.Header.Get(webhook.HeaderID)), len(body))
			return err
		},
	}
	c.Flags().StringArrayVar(&files, "key", nil, "file of keys (whsec_…, whsk_… or whpk_…); may be given more than once")
	c.Flags().StringVar(&at, "at", "", "the time that counts as now, RFC 3339")
	_ = c.MarkFlagFilename("key")
	_ = c.MarkFlagRequired("key")
	return c
}

func readKeys(files []string) (keys []*webhook.Key, err error) {
	for _, f := range files {
		some, err := webhook.ReadFile(f)
		if err != nil {
			return nil, err
		}
		keys = append(keys, some...)
	}
	return keys, nil
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err == nil && len(body) > maxRequest {
		err = fmt.Errorf("is larger than %d bytes", maxRequest)
	}
	return body, err
}
