// Package webhook signs and verifies requests by the Standard Webhooks specification, version 1.0.0
// (https://www.standardwebhooks.com).
//
// What is signed is "<webhook-id>.<webhook-timestamp>.<body>": the bytes as they are sent, and the time of this attempt in whole
// seconds. A key is text:
//
//	whsec_<base64>  a secret of 24 to 64 bytes that sender and receiver share: v1, HMAC-SHA256
//	whsk_<base64>   an ed25519 private key, which signs: v1a
//	whpk_<base64>   its public key, which verifies: v1a
//
// Several keys may sign one request; a receiver is content with any signature that it can verify. That is how keys rotate: new and old
// sign for a while, and the receiver changes its key meanwhile.
package webhook
