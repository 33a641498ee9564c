// Package stock lists the kinds of handler that relay comes with.
package stock

import (
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/discard"
	"github.com/relaymq/relay/consumer/handler/exec"
	"github.com/relaymq/relay/consumer/handler/forward"
	"github.com/relaymq/relay/consumer/handler/http"
	"github.com/relaymq/relay/consumer/handler/request"
	"github.com/relaymq/relay/consumer/handler/worker"
)

// Kinds are all of them, in the order in which errors name them.
func Kinds() []handler.Kind {
	return []handler.Kind{
		http.Kind,
		exec.Kind,
		worker.Kind,
		request.Kind,
		forward.Kind,
		discard.Kind,
	}
}
