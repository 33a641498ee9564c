package run

import (
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestKeepHeadroom(t *testing.T) {
	goal := func() uint64 {
		runtime.GC()
		m := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(m)
		return m[0].Value.Uint64()
	}
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv(name, "") // for what is there
		_ = os.Unsetenv(name)
	}
	without := goal()
	release := keepHeadroom()
	if with := goal(); with < without+headroom {
		t.Errorf("the collector waits for %d MiB, without headroom for %d", with>>20, without>>20)
	}
	release()
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "100")
			release := keepHeadroom()
			if with := goal(); with > without+headroom {
				t.Errorf("the collector waits for %d MiB, although somebody tuned it", with>>20)
			}
			release()
		})
	}
}
