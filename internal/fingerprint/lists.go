package fingerprint

import (
	"strings"
)

var particles = set("van von der den de la le di da del dos bin al el ter zu")

// noNames begin with a capital in a title.
var noNames = set("Bad Request Required Denied Declined Timeout Failed Exceeded Unavailable Found Gateway Conflict Error Exception Expired Locked Account Not No Is Has Have Was Were Does Do Cannot Could Id Name Already Invalid Missing Must Service Type With Without And Or For In On To")

// names have digits and are no ids.
var names = set("h1 h2 h3 h4 h5 h6 utf8 utf16 utf32 x509 http1 http2 http3 h2c sha1 sha224 sha256 sha384 sha512 md5 crc32 base32 base64 int8 int16 int32 int64 " +
	"uint8 uint16 uint32 uint64 float32 float64 ipv4 ipv6 s3 ec2 k8s oauth2 tls1 p256 p384 ed25519 v1 v2 v3 v4 pkcs1 pkcs8 pkcs12 rs256 hs256 es256")

// standards have numbers, and are no ids: UTF-8.
var standards = set("UTF ISO SHA RFC TLS SSL AES RSA HTTP MD IEEE")

// units may follow a number, with or without a space.
var units = func() map[string]kind {
	m := make(map[string]kind)
	for w := range strings.FieldsSeq("ns us µs μs ms s sec secs second seconds m min mins minute minutes h hr hrs hour hours day days week weeks month months year years") {
		m[w] = aDuration
	}
	for w := range strings.FieldsSeq("B KB kB MB GB TB KiB MiB GiB TiB kb mb gb tb Mi Gi Ki byte bytes percent EUR USD GBP CHF JPY SEK NOK DKK PLN CAD AUD INR CNY BRL") {
		m[w] = anID
	}
	return m
}()

// counted are words that are one or many after a number.
var counted = set("row attempt item record message error time request connection warning failure character column field argument line file " +
	"order event entry object element parameter result document problem issue violation user customer lock token")

// zones follow a clock time.
var zones = set("AM PM am pm UTC GMT Z CET CEST EST EDT PST PDT CST CDT MST MDT BST IST MSK JST EET EEST WET WEST")

var months = set("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec jan feb mar apr may jun jul aug sep oct nov dec january february march april june july august september october november december")

var weekdays = set("Mon Tue Wed Thu Fri Sat Sun mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday")

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// calendar tells whether w is the name of a month or a weekday. May, Sat and Sun are words too: see dateFollows.
func calendar(w string) bool {
	if len(w) < 3 || len(w) > 9 || w[0] < 'A' || w[0] > 'Z' {
		return false
	}
	start := [3]byte{w[0], w[1] | 0x20, w[2] | 0x20}
	if strings.IndexByte("JFMASONDTW", w[0]) < 0 || !months[string(start[:])] && !weekdays[string(start[:])] {
		return false
	}
	w = strings.ToLower(w)
	return months[w] || weekdays[w]
}

// monthsElsewhere follow the number of a day in other languages.
var monthsElsewhere = set("januar februar märz mai juni juli oktober dezember janvier février mars avril juin juillet août septembre octobre novembre décembre " +
	"enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre")
