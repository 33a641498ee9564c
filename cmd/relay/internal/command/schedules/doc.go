// Package schedules has the command relay schedule: the schedules of the configuration, what is recorded of them, and delayed messages.
package schedules
