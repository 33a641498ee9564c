// Package failpoint marks the steps between which relay may die. In every normal build [At] is empty, and the compiler
// removes it. A build with the tag chaos, which only the fault harness makes, reads the environment variable CHAOS_KILL_AT,
// <step>:<n>, and the process kills itself with SIGKILL when it comes to the step for the nth time.
package failpoint
