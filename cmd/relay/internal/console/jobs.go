package console

import (
	"net/url"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/dlq"
)

// silentAfter is how old the last sign of life of a job may be before it is shown.
const silentAfter = 5 * time.Second

type jobRow struct {
	dlq.Job
	Silent bool `json:"silent,omitempty"` // its runner says nothing any more: it can be resumed
}

// Left is how many it has not come to yet.
func (j jobRow) Left() int { return max(0, j.Total-j.Handed-j.Gone-j.Refused) }

// Resumable tells whether it can go on.
func (j jobRow) Resumable() bool {
	return j.Kind == "" && !j.Edited && j.Outdated() == "" && (j.State == dlq.JobStopped || j.State == dlq.JobCancelled || j.Silent)
}

// Percent of it that is done.
func (j jobRow) Percent() int {
	if j.Total == 0 {
		return 100
	}
	return min(100, 100*(j.Handed+j.Gone+j.Refused)/j.Total)
}

func rowOf(j dlq.Job, now time.Time) jobRow {
	return jobRow{j, j.State == dlq.JobRunning && now.Sub(j.Updated) > silentAfter}
}

func (c *Console) jobList(r *request) (*answer, error) {
	list, _, err := c.jobs.get(r.Context(), c.since())
	if err != nil {
		return nil, err
	}
	rows := []jobRow{}
	for _, j := range slices.Backward(list) {
		rows = append(rows, rowOf(j, time.Now()))
	}
	return &answer{title: "Replays", topic: "jobs", template: "jobs", data: rows}, nil
}

type jobData struct {
	jobRow
	Verdicts dlq.Tally   `json:"verdicts"`
	Failures []dlq.Group `json:"failures"`
}

func (c *Console) opened(r *request) (*dlq.Jobs, error) {
	jobs, err := c.behind().Jobs(r.Context())
	if err == nil && jobs == nil {
		err = dlq.ErrNoJob
	}
	return jobs, err
}

func (c *Console) job(r *request) (*answer, error) {
	jobs, err := c.opened(r)
	if err != nil {
		return nil, err
	}
	j, err := jobs.Get(r.Context(), r.PathValue("job"))
	if err != nil {
		return nil, err
	}
	d := jobData{jobRow: rowOf(j, time.Now())}
	if d.Verdicts, d.Failures, err = jobs.Results(r.Context(), j.ID); err != nil {
		return nil, err
	}
	return &answer{title: "Replay " + j.ID, topic: "jobs", template: "job", data: d}, nil
}

func (c *Console) cancel(r *request) (*answer, error) {
	jobs, err := c.opened(r)
	if err != nil {
		return nil, err
	}
	j, err := jobs.Cancel(r.Context(), r.PathValue("job"), r.session.by)
	if err != nil {
		return nil, err
	}
	c.acted()
	c.behind().Audit(r.session.by, "", "job "+j.ID+" cancelled")
	return &answer{done: "job " + j.ID + " is " + string(j.State), next: "/jobs/" + url.PathEscape(j.ID)}, nil
}

func (c *Console) resume(r *request) (*answer, error) {
	id := r.PathValue("job")
	if err := c.behind().Resume(r.Context(), id, r.session.by); err != nil {
		return nil, err
	}
	c.acted()
	c.behind().Audit(r.session.by, "", "job "+id+" resumed")
	return &answer{done: "job " + id + " runs again", next: "/jobs/" + url.PathEscape(id)}, nil
}
