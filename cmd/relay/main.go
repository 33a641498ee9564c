// Command relay supervises the consumers of NATS JetStream streams. See the README for what it does and relay --help for
// how it is called.
package main

import "github.com/relaymq/relay/cmd/relay/program"

func main() { program.Main() }
