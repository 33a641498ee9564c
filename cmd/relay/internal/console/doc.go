// Package console is what an operator sees in a browser: pages made on the server, of the same data and by the same code as the
// commands, and as JSON for whoever asks for it (Accept: application/json). docs/console.md and docs/api.md tell of its use.
//
// # Who may do what
//
// There is no password. `relay ui` asks for a code over NATS, on a subject to which not everybody may publish, and whoever brings the code
// to /login within a minute gets a session: to view, or to operate, as the subject was that of seeing or of acting. Each request is
// checked: the name of the host (by package admin), the session and its role, and for all that changes something that it comes
// from a page of the console itself.
//
// # What strangers wrote
//
// Subjects, headers, bodies and errors are anybody's. They reach a page only through html/template; this package makes no
// template.HTML. The policy of the pages allows scripts and styles of the console itself and nothing else.
//
// # What it costs
//
// Nothing while nobody looks. The state of the service is asked for at most once a second, however many look. A page that is open
// hears on /events that something changed, and fetches itself anew; what has the focus, a selection or something open is left
// as it is.
package console
