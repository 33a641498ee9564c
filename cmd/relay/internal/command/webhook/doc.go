// Package webhook has the command relay webhook: keys, signatures, and a receiver for a first look. It needs no configuration.
package webhook
