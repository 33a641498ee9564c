package run

import (
	"fmt"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/version"
)

// sayWhat begins the log: which relay this is, by which configuration, and what it does. A log that is found without the
// machine it came from answers these first.
func (s *service) sayWhat() {
	src := s.cfg.Source
	attrs := []any{"version", version.String(), "service", s.cfg.Service, "config", cli.Or(src.File, "none"), "routes", len(s.cfg.Routes)}
	if src.Hash != "" {
		attrs = append(attrs, "config_sha256", src.Hash)
	}
	if len(src.Overrides) > 0 {
		attrs = append(attrs, "overridden_by", src.Overrides)
	}
	s.log.Info("relay starts", append(attrs, "nats", cli.Or(s.cfg.NATS.URL.String(), "embedded"))...)
	for _, w := range src.Warnings {
		if !w.Note {
			s.log.Warn("configuration", "warning", w.Fault.String())
		}
	}
	for _, rt := range s.cfg.Routes {
		attrs := []any{"route", rt.Name, "subjects", rt.Subjects, "stream", cli.Or(rt.Stream, "by subject"), "handler", rt.Handler.String(), "concurrency", rt.Concurrency}
		if rt.Fallback != nil {
			attrs = append(attrs, "fallback", rt.Fallback.Handler.String())
		}
		s.log.Info("route", attrs...)
	}
}

// sayWhy ends a log in JSON with the reason, in which main would write plain text. A fault is a line.
func (s *service) sayWhy(err error) error {
	if err == nil {
		return nil
	}
	code := cli.ExitCode(err)
	for line := range strings.Lines(err.Error()) {
		s.log.Error("relay ends", "error", strings.TrimSpace(line), "exit_code", code)
	}
	return fmt.Errorf("%w%w", cli.ErrSaid, err)
}
