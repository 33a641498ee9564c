//go:build chaos

package chaos

import (
	"testing"
	"time"
)

// Rows without a slice of their own: another row's stands for it.

func TestFailing_1000000Waiting(t *testing.T) { failing(t, 1_000_000) } // TestFailing_100000Waiting

func TestRandom_cluster(t *testing.T) { random(t, 3, 20_000, 250, 0) } // F18 and F19

func TestPeers_down(t *testing.T) { // TestPeers_hang
	peers(begin(t), before{instances: 5, kind: "down", span: 15 * time.Second, fresh: 30_000, kills: 8, know: 2 * time.Second})
}
