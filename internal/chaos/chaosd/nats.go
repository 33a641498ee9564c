package main

import (
	"flag"

	"github.com/nats-io/nats-server/v2/server"
)

// runNATS is the main of nats-server itself, so that its signals (TERM, HUP to reload, USR2 for lame duck) work.
func runNATS(args []string) error {
	fs := flag.NewFlagSet("nats", flag.ExitOnError)
	o, err := server.ConfigureOptions(fs, args, fs.Usage, fs.Usage, fs.Usage)
	if err != nil {
		return err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
