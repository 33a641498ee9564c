package deadletters

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
)

func newDLQExport(o *cli.Options) *cobra.Command {
	var f dlqFilter
	c := &cobra.Command{
		Use: "export", Short: "write dead letters as JSON lines, whole", Args: cli.Args(cobra.NoArgs),
		Long: `Export writes each dead letter as one line of JSON, with everything it has: relay dlq import restores the same entry from
it, byte for byte. The entries stay where they are. What is not text is in fields that end in _base64.`,
		Example: `  relay dlq export --route billing > billing.jsonl`,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			filter.WithBody = true
			return o.WithDeadLetters(c, func(ctx context.Context, cl *cli.Client, store *dlq.Store) error {
				if err := f.resolve(ctx, cl, store, c.ErrOrStderr(), &filter); err != nil {
					return err
				}
				n, bad := 0, 0
				out := bufio.NewWriterSize(c.OutOrStdout(), 1<<16)
				for e, err := range store.List(ctx, filter) {
					var unreadable *dlq.EntryError
					switch {
					case errors.As(err, &unreadable):
						bad++
						fmt.Fprintln(c.ErrOrStderr(), "relay: not exported:", cli.Printable(unreadable.Error()))
						continue
					case err != nil:
						return err
					}
					if err := cli.PrintLine(out, e); err != nil {
						return err
					}
					n++
				}
				if err := out.Flush(); err != nil {
					return err
				}
				fmt.Fprintf(c.ErrOrStderr(), "%d exported\n", n)
				if bad > 0 {
					return fmt.Errorf("%d could not be exported", bad)
				}
				return nil
			})
		},
	}
	f.flags(c)
	return c
}

// maxLine bounds a line of an import: the largest body there can be, in base64, with its headers and stack.
const maxLine = 192 << 20

func newDLQImport(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "import [FILE|-]", Short: "store what export wrote, each entry once", Args: cli.Args(cobra.MaximumNArgs(1)),
		Long: `Import stores the dead letters of an export. An entry that is there already, because it was never removed or because the import
is repeated, is not stored a second time. Numbers and stored times are new.`,
		RunE: func(c *cobra.Command, a []string) error {
			in, name := c.InOrStdin(), "standard input"
			if len(a) == 1 && a[0] != "-" {
				file, err := os.Open(a[0])
				if err != nil {
					return err
				}
				defer file.Close()
				in, name = file, a[0]
			}
			return o.WithDeadLetters(c, func(ctx context.Context, _ *cli.Client, store *dlq.Store) error {
				if err := importLines(ctx, in, c.OutOrStdout(), store); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
		},
	}
}

// importLines stops at the first line that cannot be stored; what comes before it is stored, and a second import is harmless. When ctx ends, what
// was begun has a second, so that it is counted.
func importLines(ctx context.Context, in io.Reader, out io.Writer, store *dlq.Store) error {
	finish, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })()
	work, group := errgroup.WithContext(finish)
	work.SetLimit(16)
	results := make(chan bool, 16)
	var stored, there int
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		for isNew := range results {
			if isNew {
				stored++
			} else {
				there++
			}
		}
	}()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	lines := readLines(reading, in)
	var bad error
	more := true
	for more && group.Err() == nil && ctx.Err() == nil {
		select {
		case l, open := <-lines:
			if more = open && l.err == nil; !more {
				bad = l.err
				break
			}
			work.Go(func() error {
				isNew, err := store.Import(group, l.entry)
				if err != nil {
					return fmt.Errorf("line %d: %w", l.n, err)
				}
				results <- isNew
				return nil
			})
		case <-group.Done():
		case <-ctx.Done():
		}
	}
	err := work.Wait()
	close(results)
	<-counted
	fmt.Fprintf(out, "%d imported, %d there already\n", stored, there)
	if err = errors.Join(err, bad); ctx.Err() != nil && (more || err != nil) {
		return errors.New("interrupted before the end: import it again, no entry is stored twice")
	}
	return err
}

// line is one of an import.
type line struct {
	n     int
	entry dlq.Entry
	err   error
}

// readLines reads until in ends, a line is wrong, or ctx ends. A read that waits does not end with ctx: its goroutine ends with the program.
func readLines(ctx context.Context, in io.Reader) <-chan line {
	read := make(chan line)
	go func() {
		defer close(read)
		lines := bufio.NewScanner(in)
		lines.Buffer(make([]byte, 1<<16), maxLine)
		yield := func(l line) bool {
			select {
			case read <- l:
				return l.err == nil
			case <-ctx.Done():
				return false
			}
		}
		n := 1
		for ; lines.Scan(); n++ {
			text := lines.Bytes()
			if n == 1 {
				text = bytes.TrimPrefix(text, []byte("\ufeff")) // of an editor
			}
			if len(text) == 0 {
				continue
			}
			l := line{n: n}
			if err := json.Unmarshal(text, &l.entry); err != nil {
				l.err = fmt.Errorf("line %d: not a line of relay dlq export: %w", n, notAnEntry(text, err))
			}
			if !yield(l) {
				return
			}
		}
		err := lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("not a line of relay dlq export: longer than %d MiB", maxLine>>20)
		}
		if err != nil {
			yield(line{err: fmt.Errorf("line %d: %w", n, err)})
		}
	}()
	return read
}

// notAnEntry says in the words of the file why a line is no entry.
func notAnEntry(text []byte, err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case bytes.HasPrefix(text, []byte("\x1f\x8b")):
		return errors.New("the input is compressed with gzip: unpack it first, as with zcat FILE | relay dlq import -")
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("a line is a JSON object (got: %s)", wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("field %s has another type (got: %s)", wrong.Field, wrong.Value)
	}
	return err
}
