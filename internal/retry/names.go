package retry

import "strings"

// StreamName is the name of the stream in which messages of a service wait outside their durables.
func StreamName(service string) string { return strings.ToUpper(service) + "_RETRY" }

// BucketName is the name of the bucket with the attempts of messages of a service that failed.
func BucketName(service string) string { return strings.ToUpper(service) + "_ATTEMPTS" }
