// Package offline has the commands that read the configuration and talk to no server: relay lint, relay explain and relay nats. The
// settings that the console shows are of the same kind.
package offline
