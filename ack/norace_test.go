//go:build !race

package ack

const slow = 1
