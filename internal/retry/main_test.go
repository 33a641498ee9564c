package retry

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// patience is for what takes moments, on a machine that tests other packages too.
const patience = 20 * time.Second
