package repo

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write NOTICE")

const root = "../.."

// module is one that the program is built of.
type module struct {
	path, dir string
	licence   string // as SPDX names it; empty when it is not known
	text      string // of its licence
	notice    string // of its own NOTICE
}

// modules are those of the program relay, without what only tests need.
func modules(t *testing.T) (list []module) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "./cmd/relay")
	cmd.Dir = root
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, said.String())
	}
	lines := strings.Fields(strings.ReplaceAll(string(out), "\t", "|"))
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		path, dir, _ := strings.Cut(line, "|")
		m := module{path: path, dir: dir}
		m.text, m.notice = find(dir, "LICENSE", "LICENCE", "COPYING"), find(dir, "NOTICE")
		m.licence = licenceOf(m.text)
		list = append(list, m)
	}
	if len(list) < 10 {
		t.Fatalf("go list names %d modules", len(list))
	}
	return list
}

// find is the text of the first file in dir whose name begins with one of those.
func find(dir string, names ...string) string {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		for _, n := range names {
			if !f.IsDir() && strings.HasPrefix(strings.ToUpper(f.Name()), n) {
				b, _ := os.ReadFile(filepath.Join(dir, f.Name()))
				return strings.TrimSpace(strings.ReplaceAll(string(b), "\r\n", "\n"))
			}
		}
	}
	return ""
}

var space = regexp.MustCompile(`\s+`)

// licenceOf knows the licences that the program may be built of.
func licenceOf(text string) string {
	flat := space.ReplaceAllString(text, " ")
	has := func(s string) bool { return strings.Contains(flat, s) }
	switch {
	case has("Apache License Version 2.0"), has("http://www.apache.org/licenses/LICENSE-2.0"):
		return "Apache-2.0"
	case has("Permission is hereby granted, free of charge") && has("The above copyright notice and this permission notice shall be included"):
		return "MIT"
	case has("Redistribution and use in source and binary forms") && has("Neither the name"):
		return "BSD-3-Clause"
	case has("Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	case has("Mozilla Public License Version 2.0"), has("Mozilla Public License, version 2.0"):
		return "MPL-2.0"
	case has("Permission to use, copy, modify, and/or distribute this software for any purpose"):
		return "ISC"
	}
	return ""
}

// Every module that is in the program has a licence that lets it be there, and NOTICE names it.
func TestLicences(t *testing.T) {
	t.Parallel()
	all := modules(t)
	for _, m := range all {
		if m.licence == "" {
			t.Errorf("%s: its licence is not one of those known to fit Apache-2.0 (see %s)", m.path, m.dir)
		}
	}
	file := filepath.Join(root, "NOTICE")
	if *update {
		if err := os.WriteFile(file, []byte(notice(all)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if line := m.line(); !strings.Contains(string(have), line) {
			t.Errorf("NOTICE lacks %q: make notice", strings.TrimSpace(line))
		}
	}
}

func (m module) line() string { return fmt.Sprintf("    %s (%s)\n", m.path, m.licence) }

// notice is the file: each text once, after the modules that have it.
func notice(all []module) string {
	var b strings.Builder
	b.WriteString("relay\nCopyright the authors of relay. Licensed under the Apache License, Version 2.0: see LICENSE.\n\n" +
		"The program contains the following modules, each under its own licence. Written by make notice.\n")
	done := map[string]bool{}
	for _, m := range all {
		if done[m.text] {
			continue
		}
		done[m.text] = true
		fmt.Fprintf(&b, "\n%s\n\n", strings.Repeat("-", 80))
		for _, o := range all {
			if o.text == m.text {
				b.WriteString(o.line())
			}
		}
		fmt.Fprintf(&b, "\n%s\n", m.text)
	}
	for _, m := range all {
		if m.notice != "" {
			fmt.Fprintf(&b, "\n%s\nNOTICE of %s\n\n%s\n", strings.Repeat("-", 80), m.path, m.notice)
		}
	}
	return b.String()
}

// A licence that is not known, or not allowed, is none.
func TestLicenceOf_unknown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "GNU GENERAL PUBLIC LICENSE Version 3", "GNU AFFERO GENERAL PUBLIC LICENSE", "All rights reserved.", "Business Source License 1.1"} {
		if l := licenceOf(text); l != "" {
			t.Errorf("%q is taken for %s", text, l)
		}
	}
}
