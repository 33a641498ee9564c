package config

import (
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler/http"
)

// batch refuses batches for a handler that takes one message at a time. A kind of somebody's own is asked when its handler is made.
func (c *collector) batch(key string, r Route) {
	if r.Batch == nil || len(r.Handler.given) != 1 {
		return
	}
	if r.Concurrency > 0 && r.Concurrency < r.Batch.Size { // left out it is as large as it has to be
		c.warn(key+".batch.size", "must be at most %d, which is the concurrency, because each message of a batch needs a slot: relay makes smaller batches; raise concurrency, or leave it out", r.Concurrency)
	}
	kind := r.Handler.given[0]
	if slices.Contains([]string{"exec", "worker", "request", "forward", "discard"}, kind) {
		c.fault(key+".batch", "%s takes one message at a time: use http, or leave batch out", kind)
	}
	if h, ok := r.Handler.Config().(http.Config); ok {
		if strings.Contains(h.URL, "{") {
			c.fault(key+".batch", "the messages of a batch go to one URL, and handler.http.url has placeholders: leave out one of them")
		}
		if h.CloudEvents != "" && h.CloudEvents != "off" {
			c.fault(key+".batch", "a batch is made of lines of JSON, and handler.http.cloudevents is %s: leave out one of them", h.CloudEvents)
		}
	}
}
