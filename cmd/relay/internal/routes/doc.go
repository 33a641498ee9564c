// Package routes tells commands which routes there are and how they are: by the instances that run, and by the configuration when
// none does.
package routes
