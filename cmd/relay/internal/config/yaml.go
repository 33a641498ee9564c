package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile    = 1 << 20
	maxSecret  = 64 << 10
	maxDepth   = 32
	maxEntries = 1000
)

// readCapped reads a file of at most limit bytes. Its errors name neither the operation nor the file.
func readCapped(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close()
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.New("is a directory")
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, plain(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("is larger than %d bytes", limit)
	}
	return data, nil
}

// plain takes "open x: " off an error of the file system.
func plain(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// parseYAML reads one document without aliases. It returns a nil node for an empty document. Faults are put at the given
// origin, plus the line when it is a file.
//
// The tree is never decoded by yaml.v3 itself: its decoder expands aliases and compares the keys of a mapping pairwise.
func (c *collector) parseYAML(data []byte, at origin, key string) (*yaml.Node, error) {
	line := func(n int) origin {
		if at.line > 0 {
			at.line = n
		}
		return at
	}
	refuse := func(at origin, format string, args ...any) error {
		c.refuse(at, key, format, args...)
		return errRefused
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		n, msg := syntaxError(err)
		return nil, refuse(line(n), "%s", msg)
	}
	var next yaml.Node
	switch err := dec.Decode(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		n, msg := syntaxError(err)
		return nil, refuse(line(n), "%s", msg)
	default:
		return nil, refuse(line(next.Line), "only one document is allowed: a second document begins here")
	}
	root := doc.Content[0]
	if bad, msg := forbidden(root, 1); bad != nil {
		return nil, refuse(line(bad.Line), "%s", msg)
	}
	return root, nil
}

var unknownAnchor = regexp.MustCompile(`unknown anchor '.*' referenced`)

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError takes the line out of an error of the parser.
func syntaxError(err error) (line int, msg string) {
	msg = strings.TrimPrefix(err.Error(), "yaml: ")
	// The parser repeats the name, which is the secret when somebody pasted one that begins with *.
	msg = unknownAnchor.ReplaceAllString(msg, "an alias without its anchor: put a value that begins with * in quotes")
	line = 1
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = msg[len(m[0]):]
	}
	return line, "not valid YAML: " + msg
}

// forbidden finds the first node that no configuration needs.
func forbidden(n *yaml.Node, depth int) (*yaml.Node, string) {
	switch {
	case depth > maxDepth:
		return n, fmt.Sprintf("nested deeper than %d levels", maxDepth)
	case n.Kind == yaml.AliasNode:
		return n, "aliases (*name) are not allowed: put what routes share under defaults"
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!map", "!!seq", "!!merge":
	default:
		return n, "tags are not allowed: put a value that begins with ! in quotes"
	}
	for _, child := range n.Content {
		if bad, msg := forbidden(child, depth+1); bad != nil {
			return bad, msg
		}
	}
	return nil, ""
}
