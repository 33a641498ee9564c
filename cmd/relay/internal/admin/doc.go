// Package admin is relay's HTTP listener for those who watch it: three pages, no way to change anything.
//
//	GET /livez     200: the process runs. It says no more, for a restart mends nothing that relay does not mend itself
//	GET /readyz    200, or 503 with the reasons, one a line
//	GET /metrics   Prometheus, from a registry of its own: nothing that a library put into the global one
//
// Everything else is 404, and no request is redirected. There is no pprof, no configuration and no payload.
//
// It listens on loopback only, but for a listener of its own for probes (admin.probes), and needs no token: whoever is on this host may see counts. A page in a browser on this
// host may not: its requests carry the name of its own site, also after DNS rebinding, and only loopback's names are
// answered. What a stranger can hold is bounded: connections, header bytes, and time.
package admin
