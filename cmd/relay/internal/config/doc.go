// Package config reads relay's configuration: one YAML file, the environment and --set flags, decoded straight into the
// structs of the packages that use them.
//
// # Layers
//
// Later layers win, key by key: defaults ← file ← environment ← --set. What stands under defaults: is laid under every
// route, key by key as well. Lists are replaced as a whole. Of the handler, a route takes only the defaults of the kind
// it names itself, so that defaults for http do not disturb an exec route.
//
// A key without a value (creds: and nothing after it) says nothing, as if the line were not there.
//
// # Environment
//
// RELAY_NATS__URL is nats.url: two underscores stand for the dot, in upper case. RELAY_X is read when X, up to its first
// __, is a top-level key (RELAY_DRAIN, RELAY_LOG__LEVEL). With a __ and no such key it is a fault, since it was meant for
// relay; without one it is left alone: RELAY_CONFIG is a flag's, and Kubernetes sets RELAY_SERVICE_HOST and its like in
// every pod next to a service called relay. A variable set to nothing is not set.
//
// Routes and streams are named by position or by name, in both --set routes.billing.concurrency=8 and
// RELAY_ROUTES__BILLING__CONCURRENCY (where case does not count and _ may stand for -). An override cannot add a route.
// Values are read by the type of their key: text as it stands, a list as a,b or [a, b], anything else as YAML.
//
// # Faults
//
// Load finds all faults at once and returns them as [Faults], each with file and line, or the name of the variable or
// flag, the key, and the value. It goes in stages, and a later one says nothing about a key that an earlier one refused:
//
//	parse    the YAML tree: size, depth, no aliases, one document                (yaml.go)
//	check    each layer against the keys that the structs have: unknown and      (key.go, check.go)
//	         duplicate keys, types, durations; what is wrong is left out
//	merge    the layers, by koanf, with defaults: under each route               (load.go, override.go)
//	validate the values of each section, each route by its own Validate          (validate.go)
//	cross    what only shows when routes and streams are seen together           (routes.go, forward.go)
//
// The tree of keys (key.go) is made by reflection from the koanf tags, so that a field cannot be forgotten; docs.go has
// one sentence for each. From both come the check, the JSON Schema, and the test that keeps config.example.yaml complete.
// koanf's own file and YAML providers are not used: they have no size cap and forget the lines. Its environment provider
// is not either: it merges in random order.
//
// # Limits
//
// A file is at most 1 MiB and 32 levels deep; a list or map has at most 1,000 entries; all routes together, and all
// streams, have at most 1,000 subjects of 32 KiB. Together they bound the time of every check. At most 100 faults are shown.
//
// # Secrets
//
// Values of type [Secret] print as ***. A fault never repeats one, nor a value of a header or of a handler's environment.
// Relative paths are relative to the working directory.
package config
