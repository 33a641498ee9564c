// Package instances has the commands that ask the running instances how they are and give them orders: relay status, pause, resume,
// handover and grid. The pages of the console that show and do the same have it from here.
package instances
