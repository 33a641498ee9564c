// Package usercode calls code that is not relay's: handlers, and the methods of their errors. What it returns or panics with comes back as plain text.
package usercode

import (
	"fmt"
	"reflect"
	"runtime"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
)

// An error of a handler or a factory is code that is not relay's: its Error, Unwrap, Is and As methods may panic, or never return. So
// they are called where the handler itself is called, under the recover and the timeout of an attempt. What goes on from
// there to locks, logs, records and dead letters is an [Error].

// Error is the text of an error of a handler: at most [retry.MaxErrorLen] bytes, without control bytes. It unwraps to nothing.
type Error string

func (e Error) Error() string { return string(e) }

// Said asks err for its text, once.
func Said(err error) error {
	switch err.(type) {
	case nil, Error:
		return err
	}
	return Error(retry.CleanText(TextOf(err), retry.MaxErrorLen))
}

// TextOf is the text of err, or what is wrong with err as an error.
func TextOf(err error) (text string) {
	if IsNil(err) {
		return fmt.Sprintf("handler returned a nil %T as error", err)
	}
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("handler returned an error of type %T whose Error method failed: %s", err, PanicText(p))
		}
	}()
	return transient.Text(err.Error()) // what a handler publishes goes by the same connection
}

// PanicText describes a panic of an error's own methods.
func PanicText(p any) string {
	switch v := p.(type) {
	case string:
		return "panic: " + v
	case runtime.Error: // anybody may implement it, but fmt survives that
		return fmt.Sprintf("panic: %v", v)
	}
	return fmt.Sprintf("panic of type %T", p)
}

// IsNil tells whether err, which is not nil itself, holds a nil pointer, map, slice, function or channel. That is what a
// function returns that declares a variable of its own error type, and returns it where it means that there is no error.
func IsNil(err error) bool {
	switch v := reflect.ValueOf(err); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}

// Call calls code that is not relay's. What it returns, or panics with, comes back as plain text.
func Call(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Error(PanicText(p))
		}
	}()
	return Said(f())
}
