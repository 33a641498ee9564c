// Package roster says what runs and whether anything may begin: units, each of which begins and ends as a whole, the sources of each, and the changes
// under way.
//
// The life of a unit, as [Roster] has it:
//
//	(sources opened early: Include)
//	        │ Add
//	        ▼
//	     running ──── Include, Replace, Change are possible
//	        │ Commit (of a change that ends it), or Drain (of the whole instance)
//	        ▼
//	     ending  ──── nothing begins in it any more; its sources stay, as messages are in hand
//	        │ Remove
//	        ▼
//	      gone
//
// Once the instance drains, no unit, source or change begins at all. Everything that begins is decided under one lock, so that none slips in behind
// a drain or an end.
package roster
