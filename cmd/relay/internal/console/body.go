package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"unicode/utf8"
)

const (
	// maxShown is how much of a body a page has; maxNodes and maxDepth bound what is shown as a tree.
	maxShown = 256 << 10
	maxNodes = 5000
	maxDepth = 100
)

// body is one for a page: a tree, a text or a dump.
type body struct {
	Size int
	Tree *node
	Text string
	Hex  bool // Text is a dump
	Cut  bool // it is longer than what is shown
}

// node of JSON. What is written in the body, numbers of any length included, is shown as it is.
type node struct {
	Key      string
	InObject bool
	Kind     string // object, array, string, number or word
	Value    string
	Children []*node
}

func show(b []byte) body {
	shown := body{Size: len(b)}
	if len(b) > maxShown {
		b, shown.Cut = b[:maxShown], true
	}
	if !shown.Cut {
		shown.Tree = tree(b)
	}
	text := b
	if shown.Cut { // a body that ends in the midst of a character by itself is no text, and all of it is shown
		text = trimPart(b)
	}
	switch {
	case len(b) == 0:
	case utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }):
		shown.Text = string(text)
	default:
		b = b[:min(len(b), maxShown/4)] // a dump is more than four times as long
		shown.Cut = shown.Cut || len(b) < shown.Size
		shown.Text, shown.Hex = hex.Dump(b), true
	}
	return shown
}

// trimPart leaves out a character that a cut went through.
func trimPart(b []byte) []byte {
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// tree of an object or a list; nil of anything else, and of one that is too large.
func tree(b []byte) *node {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	left := maxNodes
	root := parse(d, &left, 0)
	if root == nil || root.Kind != "object" && root.Kind != "array" {
		return nil
	}
	if _, err := d.Token(); err != io.EOF {
		return nil
	}
	return root
}

func parse(d *json.Decoder, left *int, depth int) *node {
	t, err := d.Token()
	if *left--; err != nil || *left < 0 || depth > maxDepth {
		return nil
	}
	switch t := t.(type) {
	case json.Delim:
		n := &node{Kind: "array"}
		if t == '{' {
			n.Kind = "object"
		}
		for d.More() {
			key := ""
			if n.Kind == "object" {
				k, err := d.Token()
				if err != nil {
					return nil
				}
				key, _ = k.(string)
			}
			child := parse(d, left, depth+1)
			if child == nil {
				return nil
			}
			child.Key, child.InObject = key, n.Kind == "object"
			n.Children = append(n.Children, child)
		}
		if _, err := d.Token(); err != nil {
			return nil
		}
		return n
	case string:
		return &node{Kind: "string", Value: t}
	case json.Number:
		return &node{Kind: "number", Value: t.String()}
	case bool:
		return &node{Kind: "word", Value: map[bool]string{true: "true", false: "false"}[t]}
	}
	return &node{Kind: "word", Value: "null"}
}
