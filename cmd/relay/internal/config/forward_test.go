package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relaymq/relay/consumer/handler"
)

func TestTargets(t *testing.T) {
	for _, c := range []struct{ template, subject, want string }{
		{"billing.{2}", "orders.*.created", "billing.*"},
		{"{1}.done.{3}", "orders.*.created", "orders.done.created"},
		{"archive.{subject}", "orders.>", "archive.orders.>"},
		{"{subject}.copy", "orders.>", "orders.>"},
		{"x-{2}.y", "orders.*", "*.y"},
		{"x.{3}", "orders.>", "x.*"}, // a token that the > stands for
		{"{9}.x", "orders.*", "*.x"}, // no message has it
		{"{2}.x", "orders.>", ">"},   // wider than need be, never narrower
		{"{x}", "orders.>", ">"},
	} {
		got := targets(handler.Publishing{Template: c.template}, []string{c.subject})
		if diff := cmp.Diff([]string{c.want}, got); diff != "" {
			t.Errorf("%s of %s (-want +got):\n%s", c.template, c.subject, diff)
		}
	}
}

func TestRings(t *testing.T) {
	for name, c := range map[string]struct {
		feeds [][]int
		want  [][]int
	}{
		"none":        {[][]int{{1}, {2}, nil}, nil},
		"self":        {[][]int{{0, 0}}, [][]int{{0}}},
		"two":         {[][]int{{1}, {0}}, [][]int{{0, 1}}},
		"behind":      {[][]int{{1}, {2}, {3}, {1}}, [][]int{{1, 2, 3}}},
		"apart":       {[][]int{{1}, {0}, {3}, {2}}, [][]int{{0, 1}, {2, 3}}},
		"diamond":     {[][]int{{1, 2}, {3}, {3}, nil}, nil},
		"two from 0":  {[][]int{{1, 2}, {0}, {0}}, [][]int{{0, 1}, {0, 2}}},
		"one is none": {[][]int{nil}, nil},
	} {
		if diff := cmp.Diff(c.want, rings(c.feeds)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
