package deadletters

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
)

// edit lets the operator change the body of an entry.
func (r *replayer) edit(ctx context.Context, n uint64) (dlq.Entry, error) {
	e, err := r.store.Get(ctx, n)
	if err != nil {
		return e, entryError(n, err)
	}
	if r.edited, err = editor(ctx, r.c, e.Data); err != nil {
		return e, err
	}
	if string(r.edited) == string(e.Data) {
		return e, errors.New("the body is unchanged; nothing was replayed (replay it without --edit)")
	}
	fmt.Fprintf(r.out, "body edited: %d bytes instead of %d\n", len(r.edited), len(e.Data))
	return e, nil
}

// editor opens data in the editor of the operator's choice. What was JSON has to be JSON again: the operator may go on editing, and
// what was written is kept otherwise.
func editor(ctx context.Context, c *cobra.Command, data []byte) ([]byte, error) {
	command := strings.Fields(cli.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR")))
	if len(command) == 0 {
		return nil, fmt.Errorf("%w: --edit: set $EDITOR to the editor of your choice", cli.ErrUsage)
	}
	file, err := os.CreateTemp("", "relay-dead-letter-*")
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			os.Remove(file.Name())
		}
	}()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	for {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:], file.Name())...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
		if screen, ok := cmd.Stdout.(*cli.Screen); ok {
			cmd.Stdout = screen.File // it gets the terminal itself, not a pipe
		}
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w; nothing is done", command[0], err)
		}
		edited, err := os.ReadFile(file.Name())
		if err != nil {
			return nil, err
		}
		if edited == nil {
			edited = []byte{}
		}
		fault := jsonFault(edited)
		if fault == nil || !json.Valid(data) {
			return edited, nil
		}
		fmt.Fprintf(c.ErrOrStderr(), "relay: the body was JSON, and is not valid JSON any more: %s\n", cli.Printable(fault.Error()))
		if cli.Confirm(ctx, c, "Edit it again?") != nil {
			keep = true
			return nil, fmt.Errorf("the body is not valid JSON any more: %w; nothing was replayed, and what you wrote is in %s", fault, file.Name())
		}
	}
}

// jsonFault says where data stops being JSON.
func jsonFault(data []byte) error {
	err := json.Unmarshal(data, new(json.RawMessage))
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	before := data[:min(int(syntax.Offset), len(data))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n') - 1
	return fmt.Errorf("line %d, column %d: %w", line, max(column, 1), err)
}
