package offline

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/version"
)

// Settings are those of the console: of cfg what counts only once the process is started again, of now what runs.
func Settings(cfg, now *config.Config) console.Settings {
	s := console.Settings{
		Version: version.String(), Service: cfg.Service, File: cfg.Source.File, Hash: now.Source.Hash, Overrides: cfg.Source.Overrides,
		Values: []console.Setting{
			{Key: "nats.url", Value: cli.Or(cfg.NATS.URL.String(), "(embedded)")}, {Key: "nats.replicas", Value: strconv.Itoa(cfg.NATS.Replicas)},
			{Key: "dlq.max_age", Value: cfg.DLQ.MaxAge.String()}, {Key: "dlq.max_bytes", Value: fmt.Sprint(cfg.DLQ.MaxBytes)}, {Key: "dlq.on_full", Value: cfg.DLQ.OnFull},
			{Key: "events.store", Value: strconv.FormatBool(cfg.Events.Store)}, {Key: "archive.outcomes", Value: strconv.FormatBool(cfg.Archive.Outcomes)}, {Key: "drain", Value: now.Drain.String()}, {Key: "ready.stalled", Value: cfg.Ready.Stalled.String()},
		},
	}
	for _, w := range now.Source.Warnings {
		s.Warnings = append(s.Warnings, fmt.Sprint(w))
	}
	for _, rt := range now.Routes {
		r := rt.Route.WithDefaults()
		var delays []string
		for _, a := range timeline(r.Retry.Backoff, r.Retry.MaxAttempts, r.Retry.MaxAge, r.Retry.ParkAfter) {
			if a.Number > 1 && len(delays) < shownDelays {
				delays = append(delays, a.After)
			}
		}
		attempts := strconv.Itoa(r.Retry.MaxAttempts)
		if r.Retry.MaxAttempts < 0 {
			attempts = "no bound"
		}
		trip := r.Supervisor.RouteTrip
		s.Routes = append(s.Routes, console.RouteSetting{Name: r.Name, Values: []console.Setting{
			{Key: "handler", Value: rt.Handler.String()}, {Key: "subjects", Value: strings.Join(r.Subjects, ", ")}, {Key: "concurrency", Value: strconv.Itoa(r.Concurrency)},
			{Key: "key, order", Value: r.Key + ", " + string(r.Order)}, {Key: "timeout, ack_wait", Value: r.Timeout.String() + ", " + r.AckWait.String()},
			{Key: "attempts", Value: attempts + ", within " + r.Retry.MaxAge.String()}, {Key: "retries after", Value: strings.Join(delays, ", ") + ", …"},
			{Key: "key waits after", Value: fmt.Sprintf("%d failures in a row", *r.Supervisor.TripAfter)},
			{Key: "route waits when", Value: fmt.Sprintf("%g %% of %d fail, over %d keys", 100*trip.Share, *trip.Of, trip.Keys)},
			{Key: "stash", Value: fmt.Sprintf("%d messages", r.Stash.Messages)}, {Key: "fallback", Value: fallbackOf(rt)},
		}})
	}
	return s
}
