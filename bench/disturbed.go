package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Figures of the jobs reload and console.
const (
	reloads    = "reloads"
	reloadTime = "ms a reload"
	pagesRead  = "pages read"
)

// disturbed drains a backlog by the program, alone or while something else is asked of it, and sees that each message arrived at the endpoint.
func (b *bench) disturbed(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	n := b.size(j.n)
	if err := w.fill(ctx, n, j.subjects, j.size, b.seed); err != nil {
		return err
	}
	return b.inTurns(ctx, j, func(who string, round int) (r sample, err error) {
		s := b.spec(w, j, who, round)
		s.Contestant = "binary"
		p, err := s.Handler.endpoint(ctx)
		if err != nil {
			return r, err
		}
		defer p.end()
		var meanwhile func(*contestant, <-chan struct{}) (map[string]float64, error)
		switch who {
		case "reloaded":
			meanwhile = func(c *contestant, over <-chan struct{}) (map[string]float64, error) { return reloadOften(w, c, over) }
		case "watched":
			meanwhile = func(_ *contestant, over <-chan struct{}) (map[string]float64, error) { return b.watch(ctx, w, over) }
		}
		r, err = b.drainSince(ctx, w, s, n, 0, b.atMost(j.atMost), begun(n), meanwhile)
		if err == nil {
			var seen int
			if err = p.ask(&seen); err == nil && seen < r.Handled {
				err = fmt.Errorf("%d messages are settled, and the endpoint saw %d", r.Handled, seen)
			}
		}
		durables, _ := s.durables()
		return r, errors.Join(err, w.forget(ctx, durables))
	})
}

const (
	reloadsMax   = 100
	reloadsApart = 50 * time.Millisecond
)

// reloadOften has the program read another concurrency again and again, by the request that `relay reload` sends.
func reloadOften(w *world, c *contestant, over <-chan struct{}) (map[string]float64, error) {
	answers, err := w.nc.SubscribeSync(w.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Unsubscribe() }()
	var took []float64
	for len(took) < reloadsMax {
		s := *c.spec
		s.Concurrency += 1 - len(took)%2
		if err := c.binary.configure(&s); err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := w.nc.PublishRequest("relay.ctl.act.reload", answers.Subject, []byte(`{"by":"bench"}`)); err != nil {
			return nil, err
		}
		var said struct {
			Outcome string
			Changed []string
			Faults  []string
		}
		for said.Outcome == "" { // the first answer says that it was heard
			m, err := answers.NextMsg(10 * time.Second)
			if err != nil {
				return nil, fmt.Errorf("reload: %w", err)
			}
			if err := json.Unmarshal(m.Data, &said); err != nil {
				return nil, err
			}
		}
		if said.Outcome != "done" || len(said.Changed) != 1 {
			return nil, fmt.Errorf("reload: %+v", said)
		}
		took = append(took, float64(time.Since(begun).Microseconds())/1000)
		select {
		case <-over:
			return map[string]float64{reloads: float64(len(took)), reloadTime: median(took)}, nil
		case <-time.After(reloadsApart):
		}
	}
	<-over
	return map[string]float64{reloads: float64(len(took)), reloadTime: median(took)}, nil
}

// tabs are how many pages of the console are open.
const tabs = 20

// watch has the pages open, in a process of their own, until it is over.
func (b *bench) watch(ctx context.Context, w *world, over <-chan struct{}) (map[string]float64, error) {
	link, err := exec.CommandContext(ctx, b.relay, "ui", "--server", w.url, "--role", "view").Output()
	if err != nil {
		return nil, fmt.Errorf("relay ui: %w", err)
	}
	p, err := play(ctx, "tabs", strings.TrimSpace(string(link)))
	if err != nil {
		return nil, err
	}
	defer p.stop(nil)
	var open string
	if err := p.hear(&open, 20*time.Second); err != nil {
		return nil, err
	}
	<-over
	var read int
	if err := p.ask(&read); err != nil {
		return nil, err
	}
	return map[string]float64{pagesRead: float64(read)}, nil
}

// openTabs is a browser with many pages of the console, each of which does what console.js does: it follows what changes, and reads the page again at
// most once a second.
func openTabs(arg string) error {
	var link string
	if err := json.Unmarshal([]byte(arg), &link); err != nil {
		return err
	}
	base, code, found := strings.Cut(link, "/login#")
	if !found {
		return fmt.Errorf("no link: %q", link)
	}
	jar, _ := cookiejar.New(nil) // it never fails
	browser := &http.Client{Jar: jar}
	if _, err := get(browser.PostForm(base+"/login", url.Values{"code": {code}})); err != nil {
		return err
	}
	overview, err := get(browser.Get(base + "/"))
	if err != nil {
		return err
	}
	_, route, found := bytes.Cut(overview, []byte(`href="/routes/`))
	name, _, closed := bytes.Cut(route, []byte(`"`))
	if !found || !closed {
		return fmt.Errorf("no route on the overview: %.300s", overview)
	}
	var read atomic.Int64
	failed := make(chan error, tabs)
	var opened sync.WaitGroup
	for i := range tabs {
		path := []string{"/", "/routes/" + string(name)}[i%2]
		opened.Add(1)
		go func() { failed <- openTab(browser, base, path, &read, opened.Done) }()
	}
	all := make(chan struct{})
	go func() {
		opened.Wait()
		close(all)
	}()
	select {
	case err := <-failed:
		return err
	case <-all:
	}
	if err := say("open"); err != nil {
		return err
	}
	untilAsked()
	select {
	case err := <-failed:
		return err
	default:
	}
	return say(read.Load())
}

// openTab reads a page, and again when the stream says that something has changed. It returns when the stream ends.
func openTab(browser *http.Client, base, path string, read *atomic.Int64, opened func()) error {
	look := func() error {
		req, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("X-Relay-Part", "1")
		req.Header.Set("Accept", "text/html")
		_, err = get(browser.Do(req))
		read.Add(1)
		return err
	}
	if err := look(); err != nil {
		return err
	}
	resp, err := browser.Get(base + "/events?topic=status")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("events: %s", resp.Status)
	}
	changed := make(chan struct{}, 1)
	go func() {
		for range changed {
			if look() != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}()
	first := true
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if lines.Text() != "event: changed" {
			continue
		}
		if first {
			first = false
			opened()
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return errors.New("the stream of events ended")
}

// get is the body of an answer that is one.
func get(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", resp.Request.URL.Path, resp.Status, body)
	}
	return body, err
}
