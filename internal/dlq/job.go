package dlq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/fingerprint"
	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
)

// JobState is what becomes of a replay job.
type JobState string

// The states of a job.
const (
	JobRunning   JobState = "running"
	JobStopped   JobState = "stopped"   // it can be resumed
	JobCancelled JobState = "cancelled" // it can be resumed, too, when somebody thinks again
	JobDone      JobState = "done"
	JobNewer     JobState = "of a newer version" // listed, and left alone
)

// jobAge is how long a job is remembered after its last change.
const jobAge = 30 * 24 * time.Hour

// jobFormat is that of the records that this version writes. Records without one are of versions before it.
const jobFormat = 1

// grouping is the kind of [fingerprint.Of] that this version forms.
const grouping = 2

// These are values of [Job.Kind]: records of what somebody did, which nobody resumes.
const (
	Discard        = "discard"         // of dead letters
	RetriesDiscard = "retries discard" // of messages that waited for their retry
	OrphansMove    = "orphans move"    // of what waited for one route to another one
)

// Job is a replay as the bucket <SERVICE>_JOBS has it. Whoever runs it writes it twice a second.
type Job struct {
	ID     string `json:"id"`
	Format int    `json:"format"`
	// Grouping is the kind of fingerprint in Filter; 0 is that of versions before grouping was counted.
	Grouping int `json:"grouping,omitempty"`
	// Kind is empty for a replay, Discard, RetriesDiscard or OrphansMove.
	Kind  string   `json:"kind,omitempty"`
	State JobState `json:"state"`
	// Why says why it does not run any more.
	Why string `json:"why,omitempty"`
	// By began it, Runner runs it or did so last.
	By      string    `json:"by"`
	Runner  string    `json:"runner"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`

	// What is replayed: Numbers if there are any, else what matches Filter up to the entry Last.
	Filter  Filter   `json:"filter"`
	Numbers []uint64 `json:"numbers,omitempty"`
	Last    uint64   `json:"last"`
	// Subject is that of [Target].
	Subject string `json:"to_subject,omitempty"`

	// Rate is entries a second; 0: as fast as it goes. StopAfter is the percentage of failed first verdicts that stops the
	// job; 0: none. Wait waits for the verdicts at the end; Staged and StopAfter do so by themselves.
	Rate      float64 `json:"rate,omitempty"`
	Staged    bool    `json:"staged,omitempty"`
	StopAfter float64 `json:"stop_after,omitempty"`
	Wait      bool    `json:"wait,omitempty"`
	// Edited says that the body of its one entry was changed. Such a job cannot be resumed: its body is gone.
	Edited bool `json:"edited,omitempty"`

	// Total is how many entries were chosen, by Routes, stored from Oldest to Newest.
	Total  int            `json:"total"`
	Routes map[string]int `json:"routes"`
	Oldest time.Time      `json:"oldest"`
	Newest time.Time      `json:"newest"`

	// Handed entries were handed over and removed; Gone ones were removed by somebody else; Refused ones stay.
	Handed   int       `json:"handed"`
	Gone     int       `json:"gone,omitempty"`
	Refused  int       `json:"refused,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"` // the first [maxRefusals]
	// Reasons are those of all refusals, with how many entries each has; at most 20.
	Reasons map[string]int `json:"reasons,omitempty"`
	// WaitsFor is what nobody asks for of that which was handed over, while the job waits for verdicts; at most 20.
	WaitsFor []WaitsFor `json:"waits_for,omitempty"`
	// Discarded is how many messages a [RetriesDiscard] took out of their retries, by "<stream>/<route>": the ledger of their durable counted
	// that they came. What was replayed and not delivered yet is not among them.
	Discarded map[string]int `json:"discarded,omitempty"`
	// MovedAway and MovedHere are how many retries an [OrphansMove] took from a route and gave to one, by "<stream>/<route>", as far as a ledger does not
	// count that they came.
	MovedAway map[string]int `json:"moved_away,omitempty"`
	MovedHere map[string]int `json:"moved_here,omitempty"`
	// Stage is the one it is in, from 0.
	Stage int `json:"stage,omitempty"`
	// Before are the verdicts that had come when it was last resumed: they do not count for StopAfter.
	Before Tally `json:"before,omitzero"`

	revision uint64
}

// Waits tells whether the job waits for the verdicts of what it handed over.
func (j Job) Waits() bool { return j.Subject == "" && (j.Wait || j.Staged || j.StopAfter > 0) }

// Check says what is wrong with how the job is to run, beginning with the name of its field.
func (j Job) Check() error {
	switch {
	case !(j.Rate >= 0) || math.IsInf(j.Rate, 1): // so that NaN is refused
		return fmt.Errorf("rate: must be a number from 0, which is no bound (got %g)", j.Rate)
	case !(j.StopAfter >= 0 && j.StopAfter < 100):
		return fmt.Errorf("stop_after: must be a percentage below 100; 0: none (got %g)", j.StopAfter)
	case j.Subject != "" && (j.Staged || j.StopAfter > 0 || j.Wait):
		return errors.New("subject: staged, stop_after and wait need the verdicts of a route")
	}
	return nil
}

// Refusal is an entry that stays, and why.
type Refusal struct {
	Number uint64 `json:"number"`
	Why    string `json:"why"`
}

const maxRefusals = 100

// countReason counts an entry that stays.
func countReason(reasons map[string]int, why string) {
	if _, known := reasons[why]; !known && len(reasons) >= 20 {
		why = "other reasons"
	}
	reasons[why]++
}

// WaitsFor are messages that were handed over, and for which no instance asks.
type WaitsFor struct {
	Route    string    `json:"route"`
	Stream   string    `json:"stream"`
	Messages int       `json:"messages"`
	Since    time.Time `json:"since"` // when that was seen first
}

func (w WaitsFor) String() string {
	return fmt.Sprintf("%d for route %s of stream %s, which no instance pulls (check with relay status that an instance runs this route, and that it is not paused), since %s",
		w.Messages, w.Route, w.Stream, w.Since.UTC().Format(time.RFC3339))
}

// Tally counts first verdicts.
type Tally struct {
	OK     int `json:"ok"`
	Failed int `json:"failed"`
}

// N is how many there are.
func (t Tally) N() int { return t.OK + t.Failed }

var (
	// ErrNoJob says that there is no such job (any more).
	ErrNoJob = errors.New("no such replay job")
	// ErrJobTaken says that somebody else runs the job.
	ErrJobTaken = errors.New("somebody else runs this job")
	// ErrJobCancelled says that the job was cancelled from elsewhere.
	ErrJobCancelled = errors.New("cancelled")
)

// Jobs is the bucket <SERVICE>_JOBS. A job is the value of its id. The first verdicts of its messages are beside it, under
// <id>.v.<unique>: each relay writes those of the last moments as one value ([Verdicts]), so nobody waits for anybody.
type Jobs struct {
	kv jetstream.KeyValue
}

func jobsName(service string) string { return strings.ToUpper(cmp.Or(service, "relay")) + "_JOBS" }

// OpenJobs opens the bucket, and makes it when it is missing.
func OpenJobs(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Jobs, error) {
	kv, err := ownstream.OpenBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: jobsName(service), Replicas: max(replicas, 1), TTL: jobAge, Description: "relay: replay jobs and their verdicts",
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", jobsName(service), classify(err))
	}
	return &Jobs{kv}, nil
}

// JobsStream is what the stream of the bucket has to be.
func JobsStream(service string, replicas int) jetstream.StreamConfig {
	return ownstream.Bucket(jobsName(service), max(replicas, 1), jobAge)
}

// AttachJobs opens the bucket. It returns an error that is [jetstream.ErrBucketNotFound] when there is none, because nobody
// has begun a job yet.
func AttachJobs(ctx context.Context, js jetstream.JetStream, service string) (*Jobs, error) {
	kv, err := js.KeyValue(ctx, jobsName(service))
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", jobsName(service), err)
	}
	return &Jobs{kv}, nil
}

var jobRule = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// NewJobID is one that sorts by time and can be typed.
func NewJobID(now time.Time) string {
	const letters = "abcdefghjkmnpqrstuvwxyz23456789"
	id := []byte(now.UTC().Format("20060102-150405-"))
	for range 4 {
		id = append(id, letters[rand.IntN(len(letters))])
	}
	return string(id)
}

// Create stores a new job.
func (j *Jobs) Create(ctx context.Context, job *Job) error {
	if !jobRule.MatchString(job.ID) {
		return fmt.Errorf("%q is not the id of a job", job.ID)
	}
	job.Updated, job.Format = time.Now().UTC(), jobFormat
	if job.Filter.Fingerprint != "" {
		job.Grouping = grouping
	}
	v, err := json.Marshal(job)
	if err == nil {
		job.revision, err = j.kv.Create(ctx, job.ID, v)
	}
	if err != nil {
		return fmt.Errorf("job %s: %w", job.ID, classify(err))
	}
	return nil
}

// Get reads a job; the error is [ErrNoJob] when there is none.
func (j *Jobs) Get(ctx context.Context, id string) (Job, error) {
	if !jobRule.MatchString(id) {
		return Job{}, fmt.Errorf("%w: %q", ErrNoJob, id)
	}
	e, err := j.kv.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Job{}, fmt.Errorf("%w: %s", ErrNoJob, id)
	}
	if err != nil {
		return Job{}, fmt.Errorf("job %s: %w", id, classify(err))
	}
	var job Job
	// The other fields of a newer record may mean anything.
	err = json.Unmarshal(e.Value(), &job)
	if job.Format > jobFormat {
		return Job{}, fmt.Errorf("job %s: its record, of format %d, %w; this version reads up to %d", id, job.Format, retry.ErrOtherVersion, jobFormat)
	}
	if err != nil {
		return Job{}, fmt.Errorf("job %s: %w", id, err)
	}
	job.revision = e.Revision()
	return job, nil
}

// Outdated says why a job cannot be resumed by this version; empty if it can.
func (j Job) Outdated() string {
	if j.Filter.Fingerprint != "" && j.Grouping != grouping {
		return "the job chose its dead letters by a group of errors, and another version of relay, which forms groups differently, began it: begin a new job with --like"
	}
	return ""
}

// List returns all jobs, oldest first. Of one that a newer version wrote only the id and the format are sure.
func (j *Jobs) List(ctx context.Context) ([]Job, error) {
	var all []Job
	for e, err := range kvwatch.All(ctx, j.kv, "*") {
		if err != nil {
			return nil, classify(err)
		}
		job := Job{revision: e.Revision()}
		err := json.Unmarshal(e.Value(), &job)
		if job.Format > jobFormat {
			job = Job{ID: e.Key(), Format: job.Format, State: JobNewer, Created: e.Created()}
			err = nil
		}
		if err == nil {
			all = append(all, job)
		}
	}
	slices.SortFunc(all, func(a, b Job) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// Operates tells whether the record is of something that somebody did with messages in the retry stream, which no ledger has.
func (j Job) Operates() bool { return j.Kind == RetriesDiscard || j.Kind == OrphansMove }

// OperatedSince is what these records say of the retries of a stream since a time, by route.
func OperatedSince(records []Job, stream string, since time.Time) map[string]audit.Counts {
	sum := make(map[string]audit.Counts)
	add := func(list map[string]int, counts func(n uint64) audit.Counts) {
		for key, n := range list {
			if route, ok := strings.CutPrefix(key, stream+"/"); ok {
				sum[route] = sum[route].Add(counts(uint64(max(0, n))))
			}
		}
	}
	for _, j := range records {
		if !j.Operates() || j.Created.Before(since) {
			continue
		}
		add(j.Discarded, func(n uint64) audit.Counts { return audit.Counts{Discarded: n} })
		add(j.MovedAway, func(n uint64) audit.Counts { return audit.Counts{MovedAway: n} })
		add(j.MovedHere, func(n uint64) audit.Counts { return audit.Counts{MovedHere: n} })
	}
	return sum
}

// update stores the job if nobody changed it since it was read.
func (j *Jobs) update(ctx context.Context, job *Job) error {
	job.Updated, job.Format = time.Now().UTC(), jobFormat
	v, err := json.Marshal(job)
	if err != nil {
		return err
	}
	rev, err := j.kv.Update(ctx, job.ID, v, job.revision)
	if err == nil {
		job.revision = rev
	}
	return err
}

// End stores how the record of a discard ended.
func (j *Jobs) End(ctx context.Context, job *Job) error { return classify(j.update(ctx, job)) }

// Cancel stops a job wherever it runs, within about a second. What it handed over already is handled. The result is the job
// as it is then.
func (j *Jobs) Cancel(ctx context.Context, id, by string) (Job, error) {
	for {
		job, err := j.Get(ctx, id)
		if err != nil || job.State == JobDone || job.State == JobCancelled {
			return job, err
		}
		job.State, job.Why = JobCancelled, "cancelled by "+by
		if err = j.update(ctx, &job); !transient.Raced(err) {
			return job, classify(err)
		}
	}
}

// Verdict is what became of the first attempt of a replayed message.
type Verdict struct {
	// Message is [MessageToken] of its origin.
	Message string `json:"m"`
	OK      bool   `json:"ok"`
	Route   string `json:"r,omitempty"` // of one that failed, as is
	Error   string `json:"e,omitempty"` // which is at most 256 bytes
}

// MessageToken tells a replayed message from all others: <stream>-<sequence>-<origin ns>-r<replay count>, with a mark of the durable before
// the last part if that has not the name of its route.
func MessageToken(o Origin) string {
	return fmt.Sprintf("%s-%d-%d%s-r%d", o.Stream, o.Sequence, o.Time.UnixNano(), durableMark(o), o.Replay)
}

// Tell stores verdicts of a job, all as one value. The unique part of its key makes a second try of the same ones, after an
// error, replace the first.
func (j *Jobs) Tell(ctx context.Context, job, unique string, verdicts []Verdict) error {
	if !jobRule.MatchString(job) {
		return fmt.Errorf("%w: %q", ErrNoJob, job)
	}
	v, err := json.Marshal(verdicts)
	if err != nil {
		return err
	}
	_, err = j.kv.Put(ctx, job+".v."+unique, v)
	return classify(err)
}

// follow calls f for the verdicts there are, and for those that come, until ctx is done; known once when it begins to wait.
// f may be told of a message more than once: the first time counts.
func (j *Jobs) follow(ctx context.Context, job string, f func(Verdict), known func()) error {
	w, err := j.kv.Watch(ctx, job+".v.>", jetstream.IgnoreDeletes())
	if err != nil {
		return classify(err)
	}
	defer kvwatch.Stop(w)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-w.Updates():
			if !open {
				return nil
			}
			if e == nil {
				known()
				continue
			}
			var list []Verdict
			if json.Unmarshal(e.Value(), &list) != nil {
				continue // not relay's
			}
			for _, v := range list {
				f(v)
			}
		}
	}
}

// Results are the first verdicts of a job so far, and its failures by error, most frequent first.
func (j *Jobs) Results(ctx context.Context, job string) (Tally, []Group, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(map[uint64]bool)
	var t Tally
	groups := NewGroups()
	err := j.follow(ctx, job, func(v Verdict) {
		if h := hash(v.Message); !seen[h] {
			seen[h] = true
			t.count(v)
			if !v.OK {
				groups.add(v.Route, fingerprint.Of(v.Error), v.Error, 0, time.Time{})
			}
		}
	}, cancel)
	return t, groups.List(), err
}

func (t *Tally) count(v Verdict) {
	if v.OK {
		t.OK++
	} else {
		t.Failed++
	}
}
