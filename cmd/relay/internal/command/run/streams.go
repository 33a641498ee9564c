package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/transient"
)

// ensureStreams makes the streams of the configuration that are missing and compares those that are there; it never
// changes one. An error says how to change one, by the nats command as it is to be called; the embedded server ends with
// relay, and has to be running for that.
func ensureStreams(ctx context.Context, js jetstream.JetStream, streams []config.Stream, command string, log *slog.Logger) error {
	var faults, gone []error
	for _, s := range streams {
		have, err := js.Stream(ctx, s.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			_, err = js.CreateStream(ctx, streamConfig(s))
			if err = transient.Made(err); err == nil { // another instance may have been first, and this server not have heard of it
				log.Info("made stream", "stream", s.Name, "subjects", s.Subjects)
			}
		case err == nil:
			err = compareStream(have.CachedInfo().Config, s, command)
		}
		switch {
		case transient.Is(err):
			gone = append(gone, &consumer.SetupError{Err: fmt.Errorf("stream %s: %w", s.Name, err)})
		case err != nil:
			faults = append(faults, &consumer.SetupError{Err: fmt.Errorf("stream %s: %w", s.Name, err)})
		}
	}
	if len(faults) == 0 {
		faults = gone // else what is to be mended is not to be waited for
	}
	return errors.Join(faults...)
}

// missingStreams are the streams of the configuration that relay would make, and faults why it would not start with those that are there. It makes
// nothing.
func missingStreams(ctx context.Context, js jetstream.JetStream, streams []config.Stream) (made []jetstream.StreamConfig, faults []string, err error) {
	for _, s := range streams {
		have, err := js.Stream(ctx, s.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			made = append(made, streamConfig(s))
			for _, subj := range s.Subjects {
				other, err := js.StreamNameBySubject(ctx, subj)
				if err == nil {
					faults = append(faults, fmt.Sprintf("stream %s: stream %s exists, and holds subjects of %q", s.Name, other, subj))
				} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
					return nil, nil, err
				}
			}
		case err != nil:
			return nil, nil, err
		default:
			if err := compareStream(have.CachedInfo().Config, s, "nats"); err != nil {
				faults = append(faults, fmt.Sprintf("stream %s: %v", s.Name, err))
			}
		}
	}
	return made, faults, nil
}

func streamConfig(s config.Stream) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: s.Name, Subjects: s.Subjects, Replicas: s.Replicas, MaxAge: s.MaxAge, MaxBytes: int64(s.MaxBytes),
		MaxMsgs: int64(s.MaxMsgs), Storage: jetstream.FileStorage,
	}
	if s.Storage == "memory" {
		c.Storage = jetstream.MemoryStorage
	}
	switch s.Retention {
	case "workqueue":
		c.Retention = jetstream.WorkQueuePolicy
	case "interest":
		c.Retention = jetstream.InterestPolicy
	}
	if s.Discard == "new" {
		c.Discard = jetstream.DiscardNew
	}
	return c
}

// compareStream says what is not as the configuration says, and how it is changed; what the configuration does not say is not compared.
func compareStream(have jetstream.StreamConfig, s config.Stream, command string) error {
	want := streamConfig(s)
	var differs []string
	note := func(said, same bool, name string, has, wants any) {
		if said && !same {
			differs = append(differs, fmt.Sprintf("%s is %v, not %v", name, has, wants))
		}
	}
	has, wants := slices.Sorted(slices.Values(have.Subjects)), slices.Sorted(slices.Values(want.Subjects))
	note(true, slices.Equal(has, wants), "subjects", has, wants)
	note(s.Storage != "", have.Storage == want.Storage, "storage", have.Storage, want.Storage)
	note(s.Retention != "", have.Retention == want.Retention, "retention", have.Retention, want.Retention)
	note(s.Discard != "", have.Discard == want.Discard, "discard", have.Discard, want.Discard)
	note(s.Replicas != 0, have.Replicas == want.Replicas, "replicas", have.Replicas, want.Replicas)
	note(s.MaxAge != 0, have.MaxAge == want.MaxAge, "max_age", have.MaxAge, want.MaxAge)
	note(s.MaxBytes != 0, have.MaxBytes == want.MaxBytes, "max_bytes", have.MaxBytes, want.MaxBytes)
	note(s.MaxMsgs != 0, have.MaxMsgs == want.MaxMsgs, "max_msgs", have.MaxMsgs, want.MaxMsgs)
	if len(differs) == 0 {
		return nil
	}
	edit := "change the configuration, or the stream with: nats stream edit "
	if command != "nats" {
		edit = "change the configuration back, start relay, change the stream, and change the configuration again; change the stream with: " + command + " stream edit "
	}
	return fmt.Errorf("the stream exists with other settings: %s; %s%s", strings.Join(differs, ", "), edit, s.Name)
}

// streamsTimeout bounds making and comparing them.
const streamsTimeout = 10 * time.Second
