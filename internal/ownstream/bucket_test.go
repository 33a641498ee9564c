package ownstream

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// Of instances that made a bucket at the same moment, one after the other got an error: it was there already, with the settings of the other one.
func TestOpenBucket_regressionManyAtOnce(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for i := range 20 {
		name := fmt.Sprint("BUCKET", i)
		errs := make([]error, 8)
		var opening sync.WaitGroup
		for j := range errs {
			opening.Go(func() {
				cfg := jetstream.KeyValueConfig{Bucket: name, Description: fmt.Sprint("of instance ", j%2)} // of two versions
				kv, err := OpenBucket(t.Context(), js, cfg)
				if err == nil && kv.Bucket() != name {
					err = fmt.Errorf("it is bucket %s", kv.Bucket())
				}
				errs[j] = err
			})
		}
		opening.Wait()
		for j, err := range errs {
			if err != nil {
				t.Errorf("%s, opened by instance %d: %v", name, j, err)
			}
		}
	}
}
