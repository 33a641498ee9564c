// Package repo has tests of the repository itself: what it depends on, and what its tests lack.
package repo
