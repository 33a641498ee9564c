// Package engine runs the routes of an instance until it is told to end: it starts them, changes them while others run, and drains them.
//
//	Engine           what begins and ends with the instance
//	  └ Unit         what begins and ends together: a durable and its routes
//	      └ route.Route
//
// A start asks first and makes then (start.go). A change is checked in full before anything changes (change.go). A route with partitions is one route to
// everybody else, and here one for each partition (partitions_change.go). One instance at a time has a unit whose routes are leased (tenure.go).
package engine
