//go:build !race

package retry

const slow = 1
