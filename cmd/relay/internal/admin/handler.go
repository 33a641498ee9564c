package admin

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode"
)

// handler is a switch and not a ServeMux, which redirects what it thinks was meant.
type handler struct {
	ready    func() error
	metrics  http.Handler
	anywhere bool
	console  http.Handler
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	head.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("X-Frame-Options", "DENY")
	switch {
	case !h.anywhere && !ourName(r.Host):
		reply(w, http.StatusForbidden, "this listener accepts only localhost, 127.0.0.1 and [::1] as the host of a request")
	case h.console != nil && !probe(r.URL.Path):
		h.console.ServeHTTP(w, r)
	case !probe(r.URL.Path):
		reply(w, http.StatusNotFound, "not found")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		head.Set("Allow", "GET, HEAD")
		reply(w, http.StatusMethodNotAllowed, "method not allowed")
	case r.URL.Path == "/livez":
		reply(w, http.StatusOK, "ok")
	case r.URL.Path == "/readyz":
		h.readyz(w)
	default:
		h.metrics.ServeHTTP(w, r)
	}
}

func probe(path string) bool { return path == "/livez" || path == "/readyz" || path == "/metrics" }

func (h *handler) readyz(w http.ResponseWriter) {
	if h.ready != nil {
		if err := h.ready(); err != nil {
			reply(w, http.StatusServiceUnavailable, printable(err.Error()))
			return
		}
	}
	reply(w, http.StatusOK, "ok")
}

func reply(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)+1))
	w.WriteHeader(status)
	io.WriteString(w, text+"\n") // a client that went away is no concern of ours
}

// ourName tells whether the request meant us and not a site whose name was pointed here.
func ourName(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			name = host[1 : len(host)-1]
		}
	}
	if strings.Trim(port, "0123456789") != "" {
		return false
	}
	return strings.EqualFold(name, "localhost") || name == "127.0.0.1" || name == "::1"
}

// printable keeps what an error quotes from a stranger off the terminal of whoever asks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
