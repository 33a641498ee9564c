// Package reload decides what a change of routes does, by the names of routes and the places of durables alone: which units end, which routes begin
// anew with them although nobody named them, which change in place, and for which ends a beginning waits. It touches nothing.
//
// A unit is a durable and the routes that share it. Its routes begin and end together:
//
//	a route that is named and does not change in place    its unit ends; it begins, unless it is removed
//	a route of a unit that ends, and is not named         begins anew as it is
//	a route of a unit that ends, and could change in place begins anew as it is to be
//	a route that takes a durable which a unit has          that unit ends, too
//	all others                                             go on, and notice nothing
package reload
