package supervise

import "context"

// values are what a context gives for a key: [Options.Values].
type values func(key any) any

func (v values) of(key any) any {
	if v == nil {
		return nil
	}
	return v(key)
}

// valued is a context that never ends and has values.
type valued struct {
	context.Context
	values values
}

func (c valued) Value(key any) any { return c.values.of(key) }

// background is the context of what no run is the context of: children that begin or end.
func (g *Group) background() context.Context {
	return valued{context.Background(), g.opts.Values}
}
