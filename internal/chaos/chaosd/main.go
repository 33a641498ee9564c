// Command chaosd is what the fault harness runs beside relay, each role as a process of its own that can be killed:
//
//	chaosd nats -c FILE           a nats-server, with its usual flags and signals
//	chaosd http -ledger FILE      an http handler that does what the messages say
//	chaosd exec -ledger FILE      an exec handler for one message
//	chaosd embed -config FILE     relay embedded with a Go handler, which may kill the process
//
// Nothing of it is part of the product.
package main

import (
	"fmt"
	"os"
)

func main() {
	roles := map[string]func(args []string) error{"nats": runNATS, "http": runHTTP, "exec": runExec, "embed": runEmbed}
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: chaosd nats|http|exec|embed [flags]")
		os.Exit(2)
	}
	if err := roles[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "chaosd:", err)
		os.Exit(1)
	}
}
