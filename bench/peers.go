package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go"
)

// pythonWorker acks every message. Relay and the pool by hand give it the same lines.
var pythonWorker = []string{"python3", "-u", "-c", `import sys, json; any(sys.stdout.write('{"id":"%s","verdict":"ack"}\n' % m["id"]) and sys.stdout.flush() for m in map(json.loads, sys.stdin) if "id" in m)`}

// workerProcesses is how many of them there are.
const workerProcesses = 4

// workerLine is what a worker gets of a message.
type workerLine struct {
	ID       string              `json:"id"`
	Attempt  int                 `json:"attempt"`
	Subject  string              `json:"subject"`
	Data     []byte              `json:"data_base64"`
	Headers  map[string][]string `json:"headers"`
	Stream   string              `json:"stream"`
	Sequence uint64              `json:"sequence"`
	Time     time.Time           `json:"time"`
	Route    string              `json:"route"`
	Deadline time.Time           `json:"deadline"`
}

// workerPool is a pool of workers as one writes it: whoever has a message takes a process, writes a line and reads one.
func (t *turn) workerPool(command []string) (func(subject string, body []byte) error, error) {
	type process struct {
		in  io.Writer
		out *bufio.Reader
	}
	free := make(chan process, workerProcesses)
	for range workerProcesses {
		cmd := exec.Command(command[0], command[1:]...)
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil { // it ends with this process, when its input does
			return nil, err
		}
		free <- process{in, bufio.NewReader(out)}
	}
	return func(subject string, body []byte) error {
		p := <-free
		defer func() { free <- p }()
		_, n := stampOf(body)
		now := time.Now()
		line, err := json.Marshal(workerLine{
			ID: subject, Attempt: 1, Subject: subject, Data: body, Headers: map[string][]string{}, Stream: t.Stream, Sequence: n, Time: now,
			Route: t.Run, Deadline: now.Add(30 * time.Second),
		})
		if err != nil {
			return err
		}
		if _, err := p.in.Write(append(line, '\n')); err != nil {
			return err
		}
		if line, err = p.out.ReadBytes('\n'); err != nil {
			return err
		}
		var answer struct{ ID, Verdict string }
		if err := json.Unmarshal(line, &answer); err != nil {
			return err
		}
		if answer.ID != subject || answer.Verdict != "ack" {
			return errors.New("another answer")
		}
		t.count()
		return nil
	}, nil
}

// serviceSubject is where the service of the job request answers. The stream does not have it.
const serviceSubject = "service.bench"

// serveRequests is a NATS service that says yes to everything.
func serveRequests(arg string) error {
	var url string
	if err := json.Unmarshal([]byte(arg), &url); err != nil {
		return err
	}
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(serviceSubject, func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	if err := say(serviceSubject); err != nil {
		return err
	}
	untilAsked()
	return nil
}

// ask is a request with a time of its own.
func (t *turn) ask(_ string, body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := t.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: serviceSubject, Data: body}); err != nil {
		return err
	}
	t.count()
	return nil
}
