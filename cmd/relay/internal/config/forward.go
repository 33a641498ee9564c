package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/subject"
)

// forwards refuses routes that feed each other in a ring, or relay's own subjects. Patterns are wider than the subjects
// that really occur, so a ring may be one that no message would go round; a loop that patterns do not show is found by
// the hop count at run time.
func (c *collector) forwards(cfg *Config, routes []claim, own []reserved) {
	feeds, keys := make([][]int, len(cfg.Routes)), make([]string, len(cfg.Routes))
	for i, r := range cfg.Routes {
		for _, h := range r.parts() {
			if h.Settings == nil || h.Validate() != nil || h.Publishes().Template == "" {
				continue
			}
			p := h.Publishes()
			keys[i] = fmt.Sprintf("routes[%d].%s.%s.%s", i, h.key, h.Kind(), p.Key)
			feeds[i] = append(feeds[i], c.feeds(keys[i], p, r.Subjects, routes, own)...)
		}
	}
	for _, ring := range rings(feeds) {
		names := make([]string, 0, len(ring)+1)
		for _, i := range append(ring, ring[0]) {
			names = append(names, cfg.Routes[i].Name)
		}
		c.fault(keys[ring[0]], "messages would be forwarded in a loop: %s", strings.Join(names, " → "))
	}
}

// feeds are the routes that get what a handler publishes, of messages with such subjects.
func (c *collector) feeds(key string, p handler.Publishing, subjects []string, routes []claim, own []reserved) (list []int) {
	c.reaches(key, p, subjects)
	for _, target := range targets(p, subjects) {
		for _, o := range own {
			if subject.Overlaps(target, o.pattern) && mayPass(p, o.pattern) {
				c.fault(key, "%q may publish to %q, where relay publishes %s", p.Template, o.pattern, o.what)
			}
		}
		for _, s := range routes {
			if subject.Overlaps(target, s.pattern) && mayPass(p, s.pattern) {
				list = append(list, s.owner)
			}
		}
	}
	return list
}

// mayPass tells whether a handler's allow lets it publish to some subject of a pattern.
func mayPass(f handler.Publishing, pattern string) bool {
	return len(f.Allow) == 0 || slices.ContainsFunc(f.Allow, func(p string) bool { return subject.Overlaps(p, pattern) })
}

// reaches refuses a template with a token that a subject of the route never has.
func (c *collector) reaches(key string, f handler.Publishing, subjects []string) {
	template, err := subject.ParseTemplate(f.Template)
	if err != nil {
		return
	}
	for _, s := range subjects {
		if _, err := template.Expand(s); err != nil && !strings.HasSuffix(s, ">") {
			c.fault(key, "%q: subject %q has fewer tokens than the template names", f.Template, s)
		}
	}
}

// targets are the patterns of where a handler publishes for each subject of its route. Known tokens of the subject are
// known in the target: {1}.done of orders.* is orders.done and not *.done.
func targets(f handler.Publishing, subjects []string) []string {
	template, err := subject.ParseTemplate(f.Template)
	if err != nil {
		return []string{">"}
	}
	out := make([]string, 0, len(subjects))
	for _, s := range subjects {
		filled, err := template.Expand(s)
		if err != nil { // a token after a >
			filled = template.Pattern()
		}
		out = append(out, widen(filled))
	}
	return out
}

// Targets are patterns of all that the handlers of the route may publish to.
func (r Route) Targets() (patterns []string) {
	for _, h := range r.parts() {
		if h.Settings == nil || h.Publishes().Template == "" {
			continue
		}
		p := h.Publishes()
		for _, target := range targets(p, r.Subjects) {
			if len(p.Allow) == 0 {
				patterns = append(patterns, target)
			}
			for _, allowed := range p.Allow {
				if both, ok := subject.Intersect(target, allowed); ok {
					patterns = append(patterns, both)
				}
			}
		}
	}
	return patterns
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
