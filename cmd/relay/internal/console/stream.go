package console

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"
)

const (
	// maxStreams bounds how many pages hear of changes at once; the others look by themselves every five seconds.
	maxStreams = 32
	streamLook = time.Second
	streamSend = 5 * time.Second // one write may take
	// A comment keeps whatever is between from closing a stream on which nothing changes.
	streamBeat = 15 * time.Second
)

// events tells a page that what it shows changed, and nothing of what.
func (c *Console) events(r *request) (*answer, error) {
	select {
	case c.streams <- struct{}{}:
	default:
		return nil, &httpError{http.StatusServiceUnavailable, "too many pages are open"}
	}
	defer func() { <-c.streams }()
	topic := r.FormValue("topic")
	rc := http.NewResponseController(r.w)
	_ = rc.SetReadDeadline(time.Time{})
	send := func(text string) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(streamSend))
		_, err := fmt.Fprint(r.w, text)
		return err == nil && rc.Flush() == nil
	}
	r.w.Header().Set("Content-Type", "text/event-stream")
	if !send("retry: 2000\n\n") {
		return nil, nil
	}
	tick := time.NewTicker(streamLook)
	defer tick.Stop()
	sent, beat := "", time.Now()
	for {
		revision, err := c.revision(r.Context(), topic)
		switch {
		case r.Context().Err() != nil:
			return nil, nil
		case err != nil:
			revision = "error"
		}
		switch {
		case revision != sent:
			if !send("event: changed\ndata: " + revision + "\n\n") {
				return nil, nil
			}
			sent = revision
		case time.Since(beat) > streamBeat:
			if beat = time.Now(); !send(": still here\n\n") {
				return nil, nil
			}
		}
		select {
		case <-r.Context().Done():
			return nil, nil
		case <-c.ctx.Done():
			return nil, nil
		case <-tick.C:
		}
		if c.sessions.get(c.secret(r.Request), time.Now()) == nil {
			return nil, nil
		}
	}
}

// revision is another one whenever what the topic tells of has changed.
func (c *Console) revision(ctx context.Context, topic string) (string, error) {
	switch topic {
	case "dlq":
		u, _, err := c.usage.get(ctx, c.since())
		return fmt.Sprintf("%d-%d", u.Entries, u.Last), err
	case "jobs":
		list, _, err := c.jobs.get(ctx, c.since())
		return digest(list), err
	default:
		a, _, err := c.status.get(ctx, c.since())
		return digest(a), err
	}
}

func digest(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "error"
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return fmt.Sprintf("%x", h.Sum64())
}
