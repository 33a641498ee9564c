package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler/forward"
	"github.com/relaymq/relay/internal/subject"
)

// forwards refuses routes that feed each other in a ring, or relay's own subjects. Patterns are wider than the subjects
// that really occur, so a ring may be one that no message would go round; a loop that patterns do not show is found by
// the hop count at run time.
func (c *collector) forwards(cfg *Config, routes []claim, own []reserved) {
	feeds := make([][]int, len(cfg.Routes))
	for i, r := range cfg.Routes {
		f := r.Handler.Forward
		if f == nil || f.Validate() != nil {
			continue
		}
		c.reaches(i, *f, r.Subjects)
		for _, target := range targets(*f, r.Subjects) {
			for _, o := range own {
				if subject.Overlaps(target, o.pattern) && mayPass(*f, o.pattern) {
					c.fault(fmt.Sprintf("routes[%d].handler.forward.subject", i), "%q may publish to %q, where relay publishes %s", f.Subject, o.pattern, o.what)
				}
			}
			for _, s := range routes {
				if subject.Overlaps(target, s.pattern) && mayPass(*f, s.pattern) {
					feeds[i] = append(feeds[i], s.owner)
				}
			}
		}
	}
	for _, ring := range rings(feeds) {
		names := make([]string, 0, len(ring)+1)
		for _, i := range append(ring, ring[0]) {
			names = append(names, cfg.Routes[i].Name)
		}
		c.fault(fmt.Sprintf("routes[%d].handler.forward.subject", ring[0]), "messages go round: %s", strings.Join(names, " → "))
	}
}

// mayPass tells whether the forward's allow lets it publish to some subject of a pattern.
func mayPass(f forward.Config, pattern string) bool {
	return len(f.Allow) == 0 || slices.ContainsFunc(f.Allow, func(p string) bool { return subject.Overlaps(p, pattern) })
}

// reaches refuses a template with a token that a subject of the route never has.
func (c *collector) reaches(route int, f forward.Config, subjects []string) {
	template, err := subject.ParseTemplate(f.Subject)
	if err != nil {
		return
	}
	for _, s := range subjects {
		if _, err := template.Expand(s); err != nil && !strings.HasSuffix(s, ">") {
			c.fault(fmt.Sprintf("routes[%d].handler.forward.subject", route), "%q: %q has too few tokens for it", f.Subject, s)
		}
	}
}

// targets are the patterns of where a forward publishes for each subject of its route. Known tokens of the subject are
// known in the target: {1}.done of orders.* is orders.done and not *.done.
func targets(f forward.Config, subjects []string) []string {
	template, err := subject.ParseTemplate(f.Subject)
	if err != nil {
		return []string{f.Pattern()}
	}
	out := make([]string, 0, len(subjects))
	for _, s := range subjects {
		filled, err := template.Expand(s)
		if err != nil { // a token after a >
			filled = f.Pattern()
		}
		out = append(out, widen(filled))
	}
	return out
}

// widen makes a pattern of a template filled with wildcards: x* is *, and what follows a > is lost in it.
func widen(s string) string {
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		if strings.Contains(t, ">") {
			return strings.Join(append(tokens[:i], ">"), ".")
		}
		if strings.Contains(t, "*") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// rings finds rings by going depth first and noting the way: at least one where there is any, which is enough to refuse.
// A ring begins at the route that was reached first. It stops at as many as are shown: when every route feeds every other
// there are too many to walk.
func rings(feeds [][]int) [][]int {
	const (
		unseen = iota
		onWay
		done
	)
	var (
		found [][]int
		state = make([]int, len(feeds))
		way   []int
		visit func(int)
	)
	visit = func(i int) {
		state[i] = onWay
		way = append(way, i)
		told := map[int]bool{}
		for _, next := range feeds[i] {
			switch {
			case state[next] == unseen:
				visit(next)
			case state[next] == onWay && !told[next] && len(found) < maxFaults:
				told[next] = true
				for k, w := range way {
					if w == next {
						found = append(found, append([]int(nil), way[k:]...))
					}
				}
			}
		}
		way = way[:len(way)-1]
		state[i] = done
	}
	for i := range feeds {
		if state[i] == unseen {
			visit(i)
		}
	}
	return found
}
