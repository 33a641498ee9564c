package limits

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/subject"
)

// Route is what limits need to know of a route.
type Route struct {
	Subjects []string
	Key      string   // template
	Limits   []string // names of those that it shares with others
	// OneAtATime says that one instance at a time handles messages of a key.
	OneAtATime bool
	// Own bounds the route by itself; nil: nothing does.
	Own *Own
}

// Own is the limit of one route alone.
type Own struct {
	Route  string // as people call it
	Bounds limit.Bounds
}

// OwnName is the name of the limit of a route alone.
func OwnName(route string) string { return "rate of " + route }

// Names are those of the limits of the route, with its own.
func (r Route) Names() []string {
	if r.Own == nil {
		return r.Limits
	}
	return append(slices.Clip(r.Limits), OwnName(r.Own.Route))
}

// Check says what is wrong with the limits that a route names, each fault beginning with the config name of its field.
func (r Route) Check(limits map[string]Limit) error {
	var errs []error
	for i, name := range r.Limits {
		l, known := limits[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("limits[%d]: limit %q is not defined; define it under the key limits", i, name))
		case slices.Contains(r.Limits[:i], name):
			errs = append(errs, fmt.Errorf("limits[%d]: %q is listed twice", i, name))
		case l.Per != "" && l.Scope == ScopeService && !r.OneAtATime:
			errs = append(errs, fmt.Errorf("limits[%d]: limit %q: per %q is shared by all instances only on routes with instances: one; set scope: instance on the limit, or instances: one on the route", i, name, l.Per))
		case l.Per != "":
			if err := r.checkPer(l.Per); err != nil {
				errs = append(errs, fmt.Errorf("limits[%d]: limit %q: per %q: %w", i, name, l.Per, err))
			}
		}
	}
	return errors.Join(errs...)
}

// checkPer says why a limit cannot be kept per that template for the messages of a route.
func (r Route) checkPer(per string) error {
	t, err := subject.ParseTemplate(per)
	if err != nil {
		return err
	}
	for _, s := range r.Subjects {
		// > stands for one token at least.
		if _, err := t.Expand(s); err != nil {
			return fmt.Errorf("subject %q has fewer tokens than %s names", s, per)
		}
	}
	key := cmp.Or(r.Key, "subject")
	if key == "subject" || key == per {
		return nil
	}
	k, _ := subject.ParseTemplate(key)
	for _, token := range t.Tokens() {
		if key == "route" || !slices.Contains(k.Tokens(), token) && !slices.Contains(k.Tokens(), -1) {
			return fmt.Errorf("the key of the route is %q: messages of one key would have different limits; name the token in key, too", key)
		}
	}
	return nil
}
