package fingerprint

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/retry"
)

// values draw what differs from message to message. A cause names them as {{uuid}}.
var values = map[string]func(r *rand.Rand) string{
	"n":      func(r *rand.Rand) string { return fmt.Sprint(r.IntN(10_000)) },
	"id":     func(r *rand.Rand) string { return fmt.Sprint(r.Uint64() >> r.IntN(60)) },
	"uuid":   func(r *rand.Rand) string { return dashed(drawn(r, hexDigits, 32), 8, 12, 16, 20) },
	"hex":    func(r *rand.Rand) string { return drawn(r, hexDigits, 8+r.IntN(33)) },
	"short":  func(r *rand.Rand) string { return drawn(r, hexDigits, 5) + drawn(r, "0123456789", 1) + "a" },
	"HEX":    func(r *rand.Rand) string { return strings.ToUpper(drawn(r, hexDigits, 16)) },
	"ptr":    func(r *rand.Rand) string { return fmt.Sprintf("0x%x", r.Uint64()>>r.IntN(40)) },
	"ulid":   func(r *rand.Rand) string { return "01" + drawn(r, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24) },
	"nuid":   func(r *rand.Rand) string { return drawn(r, alnum, 22) },
	"nanoid": func(r *rand.Rand) string { return drawn(r, alnum+"0123456789", 20) + "7" },
	"stripe": func(r *rand.Rand) string { return drawn(r, alnum, 14) },
	"ksuid":  func(r *rand.Rand) string { return "2" + drawn(r, alnum, 26) },
	"ord":    func(r *rand.Rand) string { return fmt.Sprintf("ORD-%d-%04d", 2020+r.IntN(7), r.IntN(10_000)) },
	"sku": func(r *rand.Rand) string {
		return drawn(r, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", 3) + "-" + fmt.Sprint(100+r.IntN(900)) + drawn(r, "XYZ", 1)
	},
	"pod": func(r *rand.Rand) string {
		return drawn(r, "bcdfghjklmnpqrstvwxz2456789", 9) + "-" + drawn(r, "bcdfghjklmnpqrstvwxz", 4) + "2"
	},
	"b64": func(r *rand.Rand) string {
		b := make([]byte, 20+3*r.IntN(14)) // ends with =; without it a piece before / may look like a folder
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return base64.StdEncoding.EncodeToString(b)
	},
	"jwt": func(r *rand.Rand) string {
		return "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiI" + drawn(r, alnum+"0123456789", 30) + "." + drawn(r, alnum+"0123456789-_", 42) + "9"
	},
	"email": func(r *rand.Rand) string {
		return pick(r, "ada", "grace.hopper", "o_brien", "linus+orders", "zoe-k") + pick(r, "", fmt.Sprint(r.IntN(99))) + "@" + pick(r, "example.org", "mail.example.com", "firma.de")
	},
	"name": func(r *rand.Rand) string {
		return pick(r, "Ada", "Grace", "Linus", "Zoë", "Jean-Luc") + " " + pick(r, "Lovelace", "Hopper", "O'Brien", "van der Berg", "Müller")
	},
	"login": func(r *rand.Rand) string { return pick(r, "ada", "grace", "linus", "zoe", "root", "app") },
	"ip":    func(r *rand.Rand) string { return fmt.Sprintf("10.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256)) },
	"port":  func(r *rand.Rand) string { return fmt.Sprint(1024 + r.IntN(60_000)) },
	"ip6": func(r *rand.Rand) string {
		return pick(r, "::1", "2001:db8::"+drawn(r, hexDigits, 4), "fe80::1:"+drawn(r, hexDigits, 3))
	},
	"rfc3339": func(r *rand.Rand) string { return at(r).Format(time.RFC3339Nano) },
	"iso":     func(r *rand.Rand) string { return at(r).Format("2006-01-02T15:04:05.000Z") },
	"sqltime": func(r *rand.Rand) string { return at(r).Format("2006-01-02 15:04:05.000000+00") },
	"date":    func(r *rand.Rand) string { return at(r).Format("2006-01-02") },
	"httpday": func(r *rand.Rand) string { return at(r).Format("Mon, 02 Jan 2006 15:04:05 GMT") },
	"ansic":   func(r *rand.Rand) string { return at(r).Format(time.ANSIC) },
	"unixday": func(r *rand.Rand) string { return at(r).Format("Mon Jan _2 15:04:05 MST 2006") },
	"long":    func(r *rand.Rand) string { return at(r).Format("January 2, 2006 3:04 PM") },
	"euday":   func(r *rand.Rand) string { return at(r).Format("02.01.2006 15:04") },
	"usday":   func(r *rand.Rand) string { return at(r).Format("1/2/2006 3:04:05 PM") },
	"clf":     func(r *rand.Rand) string { return at(r).Format("02/Jan/2006:15:04:05 -0700") },
	"slashed": func(r *rand.Rand) string { return at(r).Format("2006/01/02 15:04:05") },
	"epoch":   func(r *rand.Rand) string { return fmt.Sprint(at(r).UnixMilli()) },
	"anyday": func(r *rand.Rand) string {
		return at(r).Format(pick(r, time.RFC3339, time.RFC1123, time.ANSIC, time.UnixDate, "January 2, 2006 3:04 PM", "2006-01-02", "2 January 2006"))
	},
	"dur":  func(r *rand.Rand) string { return (time.Duration(1+r.IntN(1e9)) << r.IntN(14)).String() },
	"ms":   func(r *rand.Rand) string { return fmt.Sprint(1+r.IntN(60_000)) + pick(r, "ms", " ms") },
	"secs": func(r *rand.Rand) string { n := r.IntN(60); return fmt.Sprint(n) + " second" + plural(n) },
	"size": func(r *rand.Rand) string {
		return fmt.Sprintf("%.1f", r.Float64()*100) + pick(r, " MB", "MB", " KiB", "GiB")
	},
	"bytes": func(r *rand.Rand) string { return fmt.Sprint(r.IntN(1e7)) + " bytes" },
	"money": func(r *rand.Rand) string { return fmt.Sprintf("%.2f %s", r.Float64()*1000, pick(r, "EUR", "USD")) },
	"usd":   func(r *rand.Rand) string { return fmt.Sprintf("$%d.%02d", r.IntN(1000), r.IntN(100)) },
	"rows":  func(r *rand.Rand) string { n := 1 + r.IntN(3); return fmt.Sprint(n) + " row" + plural(n) },
	"list": func(r *rand.Rand) string {
		list := []string{}
		for range 1 + r.IntN(5) {
			list = append(list, fmt.Sprint(r.IntN(1e6)))
		}
		return strings.Join(list, pick(r, ", ", ","))
	},
	"phone": func(r *rand.Rand) string { return fmt.Sprintf("+49 %d %d", 100+r.IntN(900), 1e6+r.IntN(1e6)) },
	"path": func(r *rand.Rand) string {
		return fmt.Sprintf("/var/lib/app/%d/%s.pdf", r.IntN(1000), drawn(r, hexDigits, 12))
	},
	"arn": func(r *rand.Rand) string { return fmt.Sprintf("arn:aws:sqs:eu-west-1:%012d:orders", r.Int64N(1e12)) },
	"trace": func(r *rand.Rand) string {
		return "00-" + drawn(r, hexDigits, 32) + "-" + drawn(r, hexDigits, 16) + "-0" + pick(r, "0", "1")
	},
	"arabic": func(r *rand.Rand) string { return drawnRunes(r, "٠١٢٣٤٥٦٧٨٩", 5) },
	"pad":    func(r *rand.Rand) string { return fmt.Sprint(r.IntN(1000)) + drawn(r, alnum, r.IntN(40)) + "1" },
}

const (
	hexDigits = "0123456789abcdef"
	alnum     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

func drawn(r *rand.Rand, from string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = from[r.IntN(len(from))]
	}
	return string(b)
}

func drawnRunes(r *rand.Rand, from string, n int) (s string) {
	list := []rune(from)
	for range n {
		s += string(list[r.IntN(len(list))])
	}
	return s
}

func dashed(s string, at ...int) string {
	for i, n := range at {
		s = s[:n+i] + "-" + s[n+i:]
	}
	return s
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

func at(r *rand.Rand) time.Time { return time.Unix(1e9+r.Int64N(1e9), r.Int64N(1e9)).UTC() }

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// corpus are errors as they are: formats, and the causes that each of them reports.
var corpus = []struct {
	format string
	causes []string
}{
	{"JSON, error", []string{
		`{"error":"card expired"}`, `{"error":"unknown customer"}`, `{"error":"unknown customer {{id}}"}`, `{"error":"order {{ord}} is locked by {{email}}"}`, `{"error":"{{n}} items left over"}`,
	}},
	{"JSON, code and message", []string{
		`{"code":"out_of_stock","message":"no stock for {{sku}}","requestId":"{{uuid}}"}`, `{"code":"bad_address","message":"no address for {{sku}}","requestId":"{{uuid}}"}`,
		`{"code":1001,"message":"rejected","id":{{id}}}`, `{"code":1002,"message":"rejected","id":{{id}}}`, `{"error_code":11,"id":"{{hex}}"}`, `{"error_code":12,"id":"{{hex}}"}`,
	}},
	{"codes alone", []string{
		`{"error":"E1001"}`, `{"error":"E1002"}`, `{"reason":"R01","payment":{{id}}}`, `{"reason":"R02","payment":{{id}}}`, `{"error":"404"}`, `{"error":"410"}`, `<error><code>17</code><id>{{uuid}}</id></error>`, `<error><code>18</code><id>{{uuid}}</id></error>`,
		`error code 1001 for {{id}}`, `error code 1002 for {{id}}`, `[404] Not Found: {{id}}`, `[410] Gone: {{id}}`, `WinError 10054 at {{ip}}`, `WinError 10060 at {{ip}}`, `coupon code {{n}} is used up`, `{"error":"{{ord}} is void"}`,
	}},
	{"problem+json", []string{
		`{"type":"https://example.com/probs/out-of-credit","title":"You do not have enough credit.","detail":"Your current balance is {{n}}, but that costs {{n}}.","instance":"/account/{{id}}/msgs/{{hex}}","balance":{{n}},"accounts":["/account/{{id}}","/account/{{id}}"]}`,
		`{"type":"https://example.com/probs/account-closed","title":"The account is closed.","detail":"Closed on {{date}}.","instance":"/account/{{id}}/msgs/{{hex}}"}`,
		`{"type":"about:blank","title":"Not Found","status":404,"detail":"No order {{uuid}}","traceId":"{{trace}}"}`,
		`{"type":"about:blank","title":"Conflict","status":409,"detail":"No order {{uuid}}","traceId":"{{trace}}"}`,
	}},
	{"ASP.NET", []string{
		`{"type":"https://tools.ietf.org/html/rfc7231#section-6.5.1","title":"One or more validation errors occurred.","status":400,"traceId":"{{trace}}","errors":{"Quantity":["The field Quantity must be between 1 and 100."]}}`,
		`{"type":"https://tools.ietf.org/html/rfc7231#section-6.5.1","title":"One or more validation errors occurred.","status":400,"traceId":"{{trace}}","errors":{"Email":["The Email field is required."]}}`,
	}},
	{"Stripe", []string{
		`{ "error": { "code": "resource_missing", "doc_url": "https://stripe.com/docs/error-codes/resource-missing", "message": "No such customer: 'cus_{{stripe}}'", "param": "customer", "request_log_url": "https://dashboard.stripe.com/test/logs/req_{{stripe}}?t={{epoch}}", "type": "invalid_request_error" } }`,
		`{ "error": { "code": "resource_missing", "doc_url": "https://stripe.com/docs/error-codes/resource-missing", "message": "No such price: 'price_{{stripe}}'", "param": "price", "request_log_url": "https://dashboard.stripe.com/test/logs/req_{{stripe}}?t={{epoch}}", "type": "invalid_request_error" } }`,
		`{"error":{"charge":"ch_{{stripe}}","code":"card_declined","decline_code":"insufficient_funds","message":"Your card has insufficient funds.","type":"card_error"}}`,
		`{"error":{"charge":"ch_{{stripe}}","code":"card_declined","decline_code":"lost_card","message":"Your card was declined.","type":"card_error"}}`,
		`{"error":{"charge":"ch_{{stripe}}","code":"expired_card","message":"Your card has expired.","type":"card_error"}}`,
	}},
	{"PayPal", []string{
		`{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"ORDER_ALREADY_CAPTURED","description":"Order already captured."}],"debug_id":"{{hex}}"}`,
		`{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"PAYER_CANNOT_PAY","description":"The payer cannot pay."}],"debug_id":"{{hex}}"}`,
	}},
	{"Adyen", []string{
		`{"status":422,"errorCode":"14_012","message":"Required field 'reference' is not provided.","errorType":"validation","pspReference":"{{HEX}}"}`,
		`{"status":422,"errorCode":"14_013","message":"Required field 'amount' is not provided.","errorType":"validation","pspReference":"{{HEX}}"}`,
		`{"status":401,"errorCode":"000","message":"HTTP Status Response - Unauthorized","errorType":"security"}`,
	}},
	{"Twilio", []string{
		`{"code": 21211, "message": "The 'To' number {{phone}} is not a valid phone number.", "more_info": "https://www.twilio.com/docs/errors/21211", "status": 400}`,
		`{"code": 21610, "message": "Attempt to send to unsubscribed recipient", "more_info": "https://www.twilio.com/docs/errors/21610", "status": 400}`,
	}},
	{"Graph API", []string{
		`{"error":{"message":"Error validating access token: Session has expired on {{httpday}}.","type":"OAuthException","code":190,"error_subcode":463,"fbtrace_id":"A{{nuid}}"}}`,
		`{"error":{"message":"Error validating access token","type":"OAuthException","code":190,"error_subcode":467,"fbtrace_id":"A{{nuid}}"}}`,
		`{"error":{"message":"Error validating access token","type":"OAuthException","code":190,"error_subcode":460,"fbtrace_id":"A{{nuid}}"}}`,
	}},
	{"OAuth", []string{
		`{"error":"invalid_grant","error_description":"AADSTS50034: The user account {{email}} does not exist. Trace ID: {{uuid}} Correlation ID: {{uuid}} Timestamp: {{sqltime}}"}`,
		`{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret. Trace ID: {{uuid}} Correlation ID: {{uuid}} Timestamp: {{sqltime}}"}`,
		`{"error":"invalid_token","error_description":"The token {{jwt}} expired at {{rfc3339}}"}`,
		`{"error":"invalid_token","error_description":"The signature of {{jwt}} does not match"}`,
	}},
	{"Google", []string{
		`{"error":{"code":429,"message":"Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' for consumer 'project_number:{{id}}'.","status":"RESOURCE_EXHAUSTED"}}`,
		`{"error":{"code":403,"message":"Cloud Run API has not been used in project {{id}} before or it is disabled.","status":"PERMISSION_DENIED"}}`,
	}},
	{"Shopify", []string{`{"errors":{"email":["has already been taken"]}}`, `{"errors":{"email":["is invalid"]}}`, `{"errors":{"customer":["is invalid"]}}`, `{"errors":{"customer":["must exist"]}}`}},
	{"GraphQL", []string{
		`{"errors":[{"message":"Cannot query field \"emial\" on type \"Customer\".","locations":[{"line":{{n}},"column":{{n}}}],"extensions":{"code":"GRAPHQL_VALIDATION_FAILED"}}]}`,
		`{"errors":[{"message":"Cannot query field \"nmae\" on type \"Customer\".","locations":[{"line":{{n}},"column":{{n}}}],"extensions":{"code":"GRAPHQL_VALIDATION_FAILED"}}]}`,
		`{"errors":[{"message":"Order not found","path":["orders",{{n}},"lines"],"extensions":{"code":"NOT_FOUND","id":"{{uuid}}"}}],"data":null}`,
		`{"errors":[{"message":"Order not payable","path":["orders",{{n}},"lines"],"extensions":{"code":"NOT_FOUND","id":"{{uuid}}"}}],"data":null}`,
	}},
	{"JSON:API", []string{
		`{"errors":[{"id":"{{uuid}}","status":"422","source":{"pointer":"/data/attributes/firstName"},"title":"Invalid Attribute","detail":"First name must contain at least two characters."}]}`,
		`{"errors":[{"id":"{{uuid}}","status":"403","source":{"pointer":"/data/attributes/secretPowers"},"title":"Forbidden","detail":"Editing secret powers is not authorized on {{date}}."}]}`,
	}},
	{"JSON-RPC", []string{
		`{"jsonrpc":"2.0","error":{"code":-32601,"message":"Server error"},"id":{{n}}}`, `{"jsonrpc":"2.0","error":{"code":-32602,"message":"Server error"},"id":{{n}}}`,
	}},
	{"JSON in JSON", []string{
		`{"message":"{\"error\":\"card expired\",\"order\":{{id}},\"at\":\"{{iso}}\"}"}`, `{"message":"{\"error\":\"card stolen\",\"order\":{{id}},\"at\":\"{{iso}}\"}"}`,
		`{"body":"{\\\"error\\\":\\\"unknown plan\\\",\\\"id\\\":\\\"{{uuid}}\\\"}"}`, `{"body":"{\\\"error\\\":\\\"unknown coupon\\\",\\\"id\\\":\\\"{{uuid}}\\\"}"}`,
	}},
	{"unicode escapes", []string{
		`{"fehler":"Bestellung {{id}} gel\u00f6scht"}`, `{"fehler":"Bestellung {{id}} gel\u00f6st"}`, `{"error":"\u8ba2\u5355{{id}}\u4e0d\u5b58\u5728"}`, `{"error":"\u8ba2\u5355{{id}}\u5df2\u53d6\u6d88"}`,
	}},
	{"AWS XML", []string{
		`<?xml version="1.0" encoding="UTF-8"?> <Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>invoices/{{id}}.pdf</Key><RequestId>{{HEX}}</RequestId><HostId>{{b64}}</HostId></Error>`,
		`<?xml version="1.0" encoding="UTF-8"?> <Error><Code>AccessDenied</Code><Message>Access Denied</Message><RequestId>{{HEX}}</RequestId><HostId>{{b64}}</HostId></Error>`,
		`<?xml version="1.0" encoding="UTF-8"?> <Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message><RequestId>{{HEX}}</RequestId><HostId>{{b64}}</HostId></Error>`,
	}},
	{"AWS JSON", []string{
		`{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"The conditional request failed"}`,
		`{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"The level of configured provisioned throughput for the table was exceeded."}`,
		`{"__type":"AccessDeniedException","Message":"User: arn:aws:iam::{{id}}:user/relay is not authorized to perform: sqs:SendMessage on resource: {{arn}}"}`,
	}},
	{"AWS SDK for Go", []string{
		`operation error S3: GetObject, https response error StatusCode: 404, RequestID: {{HEX}}, HostID: {{b64}}, NoSuchKey: The specified key does not exist.`,
		`operation error S3: GetObject, https response error StatusCode: 403, RequestID: {{HEX}}, HostID: {{b64}}, api error AccessDenied: Access Denied`,
		`operation error SQS: SendMessage, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "https://sqs.eu-west-1.amazonaws.com/": dial tcp {{ip}}:443: i/o timeout`,
	}},
	{"boto", []string{
		`An error occurred (ThrottlingException) when calling the PutItem operation (reached max retries: {{n}}): Rate exceeded`, `An error occurred (ValidationException) when calling the PutItem operation: Item size has exceeded {{bytes}}`,
	}},
	{"gRPC", []string{
		`rpc error: code = NotFound desc = order {{id}} not found`, `rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp {{ip}}:{{port}}: connect: connection refused"`,
		`rpc error: code = DeadlineExceeded desc = context deadline exceeded`, `rpc error: code = Unavailable desc = upstream request timeout after {{dur}}`, `rpc error: code = ResourceExhausted desc = grpc: received message larger than max ({{id}} vs. {{id}})`,
	}},
	{"gRPC gateway", []string{
		`{"code":5,"message":"Order","details":[{"@type":"type.googleapis.com/google.rpc.RequestInfo","requestId":"{{uuid}}"}]}`, `{"code":7,"message":"Order","details":[{"@type":"type.googleapis.com/google.rpc.RequestInfo","requestId":"{{uuid}}"}]}`,
	}},
	{"Postgres", []string{
		`ERROR: column "emial" does not exist (SQLSTATE 42703)`, `ERROR: column "adress" does not exist (SQLSTATE 42703)`, `ERROR: relation "ordres" does not exist (SQLSTATE 42P01)`,
		`ERROR: duplicate key value violates unique constraint "orders_pkey" (SQLSTATE 23505) DETAIL: Key (id)=({{uuid}}) already exists.`,
		`ERROR: duplicate key value violates unique constraint "customers_email_key" (SQLSTATE 23505) DETAIL: Key (email)=({{email}}) already exists.`,
		`ERROR: duplicate key value violates unique constraint "customers_name_key" (SQLSTATE 23505) DETAIL: Key (name)=({{name}}) already exists.`,
		`ERROR: null value in column "total" of relation "orders" violates not-null constraint DETAIL: Failing row contains ({{id}}, {{name}}, {{sqltime}}, {{n}}).`,
		`ERROR: null value in column "vat" of relation "orders" violates not-null constraint DETAIL: Failing row contains ({{id}}, {{name}}, {{sqltime}}, {{n}}).`,
		`ERROR: deadlock detected DETAIL: Process {{n}} waits for ShareLock on transaction {{id}}; blocked by process {{n}}.`, `FATAL: sorry, too many clients already`,
		`FATAL: password authentication failed for user "{{login}}"`, `ERROR: canceling statement due to statement timeout`, `ERROR: insert or update on table "lines" violates foreign key constraint "lines_order_fkey" DETAIL: Key (order_id)=({{id}}) is not present in table "orders".`,
	}},
	{"pgx", []string{`failed to connect to ` + "`user={{login}} database=orders`" + `: {{ip}}:5432 (db): dial error: timeout`, `failed to connect to ` + "`user={{login}} database=stock`" + `: {{ip}}:5432 (db): server error: FATAL: the database system is starting up (SQLSTATE 57P03)`}},
	{"MySQL", []string{
		`Error 1062 (23000): Duplicate entry '{{email}}' for key 'customers.email'`, `Error 1062 (23000): Duplicate entry '{{name}}' for key 'customers.name'`, `Error 1054 (42S22): Unknown column 'emial' in 'field list'`,
		`Error 1054 (42S22): Unknown column 'vatt' in 'field list'`, `Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction`, `Error 1045 (28000): Access denied for user '{{login}}'@'{{ip}}' (using password: YES)`,
		`Error 1366 (HY000): Incorrect integer value: '{{name}}' for column 'qty' at row {{n}}`, `Error 2006: MySQL server has gone away`, `Error 2013: MySQL server has gone away`,
	}},
	{"SQL Server", []string{
		`Violation of PRIMARY KEY constraint 'PK_Orders'. Cannot insert duplicate key in object 'dbo.Orders'. The duplicate key value is ({{id}}).`, `Violation of PRIMARY KEY constraint 'PK_Lines'. Cannot insert duplicate key in object 'dbo.Lines'. The duplicate key value is ({{id}}).`,
		`Transaction (Process ID {{n}}) was deadlocked on lock resources with another process and has been chosen as the deadlock victim.`,
	}},
	{"Oracle", []string{`ORA-00942: table or view does not exist at line {{n}}`, `ORA-00001: unique constraint (SHOP.ORDERS_PK) violated`, `ORA-01017: invalid username/password; logon denied`, `ORA-12170: TNS:Connect timeout occurred`}},
	{"SQLite", []string{`UNIQUE constraint failed: orders.id`, `UNIQUE constraint failed: orders.number`, `database is locked (5) (SQLITE_BUSY)`, `no such table: ordres`}},
	{"MongoDB", []string{
		`E11000 duplicate key error collection: shop.orders index: number_1 dup key: { number: "{{ord}}" }`, `E11000 duplicate key error collection: shop.customers index: email_1 dup key: { email: "{{email}}" }`,
		`MongoServerSelectionError: connect ECONNREFUSED {{ip}}:27017`, `Cast to ObjectId failed for value "{{hex}}" (type string) at path "_id" for model "Order"`, `(WriteConflict) Write conflict during plan execution and yielding is disabled. txnNumber {{n}}`,
	}},
	{"Redis", []string{`WRONGTYPE Operation against a key holding the wrong kind of value`, `MOVED {{n}} {{ip}}:6379`, `CLUSTERDOWN The cluster is down`, `OOM command not allowed when used memory > 'maxmemory'.`, `READONLY You can't write against a read only replica.`, `LOADING Redis is loading the dataset in memory`}},
	{"Elasticsearch", []string{
		`{"error":{"root_cause":[{"type":"mapper_parsing_exception","reason":"failed to parse field [qty] of type [integer] in document with id '{{stripe}}1'"}],"type":"mapper_parsing_exception"},"status":400}`,
		`{"error":{"root_cause":[{"type":"mapper_parsing_exception","reason":"failed to parse field [date] of type [date] in document with id '{{stripe}}1'"}],"type":"mapper_parsing_exception"},"status":400}`,
		`{"error":{"root_cause":[{"type":"index_not_found_exception","reason":"no such index [orders]","index_uuid":"_na_"}]},"status":404}`,
		`[circuit_breaking_exception] [parent] Data too large, data for [<http_request>] would be [{{id}}/{{size}}], which is larger than the limit of [{{id}}/{{size}}]`,
	}},
	{"Kafka", []string{`KafkaError{code=REQUEST_TIMED_OUT,val=7,str="Local: Timed out after {{ms}}"}`, `org.apache.kafka.common.errors.TimeoutException: Topic orders not present in metadata after {{ms}}.`, `Offset commit failed on partition orders-{{n}} at offset {{id}}: The coordinator is not aware of this member.`, `Offset commit failed on partition orders-{{n}} at offset {{id}}: The request timed out.`}},
	{"NATS", []string{`nats: no responders available for request`, `nats: maximum payload exceeded: {{bytes}}`, `nats: API error: code=503 err_code=10077 description=maximum messages exceeded`, `nats: API error: code=400 err_code=10071 description=wrong last sequence: {{id}}`}},
	{"RabbitMQ", []string{`Exception (404) Reason: "NOT_FOUND - no queue 'orders' in vhost '/'"`, `Exception (406) Reason: "PRECONDITION_FAILED - delivery acknowledgement on channel {{n}} timed out. Timeout value used: {{ms}}"`, `Exception (320) Reason: "CONNECTION_FORCED - broker forced connection closure"`}},
	{"Java", []string{
		`java.lang.NullPointerException: Cannot invoke "com.acme.Order.getTotal()" because "order" is null at com.acme.Billing.charge(Billing.java:{{n}}) at com.acme.Billing.handle(Billing.java:{{n}})`,
		`java.lang.IllegalStateException: Order {{id}} is already paid at com.acme.Billing.charge(Billing.java:{{n}})`, `java.lang.IllegalArgumentException: Order {{id}} is already paid at com.acme.Billing.charge(Billing.java:{{n}})`,
		`java.net.SocketTimeoutException: Read timed out after {{ms}}`, `java.net.ConnectException: Connection refused (Connection refused) to {{ip}}`, `com.acme.Order@{{hex}}: not valid`, `com.acme.Invoice@{{hex}}: not valid`,
		`java.lang.OutOfMemoryError: Java heap space`, `java.lang.OutOfMemoryError: GC overhead limit exceeded`, `Caused by: java.util.concurrent.TimeoutException: Did not observe any item or terminal signal within {{ms}} in 'flatMap'`,
	}},
	{"Spring", []string{
		`{"timestamp":"{{rfc3339}}","status":500,"error":"Internal Server Error","path":"/orders/{{id}}/pay"}`, `{"timestamp":"{{rfc3339}}","status":404,"error":"Not Found","path":"/orders/{{id}}/pay"}`, `{"timestamp":"{{rfc3339}}","status":500,"error":"Internal Server Error","path":"/orders/{{id}}/ship"}`,
		`JSON parse error: Unrecognized field "qtty" (class com.acme.Line), not marked as ignorable; nested exception at [Source: (PushbackInputStream); line: {{n}}, column: {{n}}]`,
	}},
	{"Hibernate", []string{`could not execute statement; SQL [n/a]; constraint [uk_{{hex}}]`, `Row was updated or deleted by another transaction (or unsaved-value mapping was incorrect) : [com.acme.Order#{{id}}]`, `No row with the given identifier exists: [com.acme.Order#{{id}}]`, `HikariPool-1 - Connection is not available, request timed out after {{ms}}.`}},
	{"Go", []string{
		`Post "https://api.example.com/v1/orders/{{id}}": dial tcp {{ip}}:443: connect: connection refused`, `Post "https://api.example.com/v1/orders/{{id}}": dial tcp [{{ip6}}]:443: i/o timeout`, `Post "https://api.example.com/v1/orders/{{id}}": net/http: TLS handshake timeout`,
		`Post "https://api.example.com/v1/orders/{{id}}": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time {{rfc3339}} is after {{rfc3339}}`,
		`read tcp {{ip}}:{{port}}->{{ip}}:{{port}}: read: connection reset by peer`, `write tcp {{ip}}:{{port}}->{{ip}}:{{port}}: write: broken pipe`, `lookup db-{{n}}.internal on {{ip}}:53: no such host`, `lookup db-{{n}}.internal on {{ip}}:53: server misbehaving`,
		`json: cannot unmarshal string into Go struct field Order.total of type int`, `json: cannot unmarshal number into Go struct field Order.note of type string`, `invalid character 'x' looking for beginning of value at {{n}}`, `strconv.ParseInt: parsing "{{sku}}": invalid syntax`, `strconv.ParseInt: parsing "{{id}}": value out of range`,
		`open {{path}}: no such file or directory`, `open {{path}}: permission denied`, `context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, `panic: runtime error: index out of range [{{n}}] with length {{n}}`, `panic: runtime error: slice bounds out of range [:{{n}}] with capacity {{n}}`,
		`panic: runtime error: invalid memory address or nil pointer dereference [signal SIGSEGV: segmentation violation code=0x1 addr={{ptr}} pc={{ptr}}] goroutine {{n}} [running]: main.charge({{ptr}}) /src/main.go:{{n}} +{{ptr}}`,
		`panic: assignment to entry in nil map goroutine {{n}} [running]: main.charge({{ptr}}) /src/main.go:{{n}} +{{ptr}}`, `time: cannot parse the order's day in {{date}}T as a date`,
	}},
	{"Python", []string{
		`Traceback (most recent call last): File "/app/worker.py", line {{n}}, in handle charge(order) File "/app/billing.py", line {{n}}, in charge raise ValueError(f"order is paid") ValueError: order {{id}} is paid`,
		`Traceback (most recent call last): File "/app/worker.py", line {{n}}, in handle charge(order) KeyError: 'total'`, `Traceback (most recent call last): File "/app/worker.py", line {{n}}, in handle charge(order) KeyError: 'customer'`,
		`TypeError: unsupported operand type(s) for +: 'int' and 'str'`, `TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'`, `AttributeError: 'NoneType' object has no attribute 'total'`, `<Order object at {{ptr}}> has no lines`, `[Errno 111] Connection refused`, `[Errno 104] Connection reset by peer`,
		`json.decoder.JSONDecodeError: Expecting value: line {{n}} column {{n}} (char {{n}})`, `json.decoder.JSONDecodeError: Extra data: line {{n}} column {{n}} (char {{n}})`, `UnicodeDecodeError: 'utf-8' codec can't decode byte {{ptr}} in position {{n}}: invalid start byte`,
	}},
	{"requests", []string{
		`404 Client Error: Not Found for url: https://api.example.com/orders/{{id}}`, `401 Client Error: Unauthorized for url: https://api.example.com/orders/{{id}}`,
		`HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /orders/{{id}} (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at {{ptr}}>: Failed to establish a new connection: [Errno 111] Connection refused'))`,
		`HTTPSConnectionPool(host='api.example.com', port=443): Read timed out. (read timeout={{n}})`,
	}},
	{"Django, FastAPI", []string{
		`{"detail":[{"loc":["body","quantity"],"msg":"ensure this value is greater than 0","type":"value_error"}]}`, `{"detail":[{"loc":["body","email"],"msg":"field required","type":"value_error.missing"}]}`, `{"detail":"Not found."}`, `{"detail":"Request was throttled. Expected available in {{secs}}."}`,
		`{"customer":["Invalid pk \"{{id}}\" - object does not exist."]}`, `Order matching query does not exist.`, `value too long for type character varying({{n}})`,
	}},
	{"Celery", []string{`WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: {{n}}.`, `WorkerLostError: Worker exited prematurely: signal 11 (SIGSEGV) Job: {{n}}.`, `TimeLimitExceeded({{n}},)`}},
	{"Node", []string{
		`Error: connect ECONNREFUSED {{ip}}:{{port}} at TCPConnectWrap.afterConnect [as oncomplete] (node:net:{{n}}:{{n}})`, `Error: connect ETIMEDOUT {{ip}}:{{port}} at TCPConnectWrap.afterConnect [as oncomplete] (node:net:{{n}}:{{n}})`, `Error: read ECONNRESET at TCP.onStreamRead (node:internal/stream_base_commons:{{n}}:{{n}})`,
		`Error: getaddrinfo ENOTFOUND api.example.com`, `Error: getaddrinfo EAI_AGAIN api.example.com`, `TypeError: Cannot read properties of undefined (reading 'total') at charge (/app/dist/billing.js:{{n}}:{{n}}) at async Promise.all (index {{n}})`,
		`TypeError: Cannot read properties of undefined (reading 'lines') at charge (/app/dist/billing.js:{{n}}:{{n}}) at async Promise.all (index {{n}})`, `SyntaxError: Unexpected token < in JSON at position {{n}}`, `SyntaxError: Unexpected end of JSON input`,
		`AxiosError: Request failed with status code 404`, `AxiosError: Request failed with status code 500`, `AxiosError: timeout of {{ms}} exceeded`, `RangeError: Maximum call stack size exceeded`, `Error [ERR_HTTP2_STREAM_ERROR]: Stream closed with error code 2`,
	}},
	{"Prisma", []string{`{"code":"P2002","clientVersion":"5.1.0","id":"{{uuid}}"}`, `{"code":"P2025","clientVersion":"5.1.0","id":"{{uuid}}"}`, `Invalid prisma.order.create() invocation in /app/src/orders.ts:{{n}}:{{n}} Unique constraint failed on the fields: (email)`, `Invalid prisma.order.create() invocation in /app/src/orders.ts:{{n}}:{{n}} Unique constraint failed on the fields: (number)`}},
	{"Express, NestJS", []string{
		`{"statusCode":400,"message":["quantity must be a positive number"],"error":"Bad Request","timestamp":"{{iso}}","path":"/orders/{{id}}"}`, `{"statusCode":400,"message":["email must be an email"],"error":"Bad Request","timestamp":"{{iso}}","path":"/orders/{{id}}"}`, `{"statusCode":409,"message":"Order {{ulid}} exists","error":"Conflict"}`,
		`{"name":"ValidationError","message":"\"total\" is required","value":{{n}}}`, `{"name":"ValidationError","message":"\"vat\" is required","value":{{n}}}`,
	}},
	{"nginx HTML", []string{
		`<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center><hr><center>nginx/1.{{n}}.0</center></body></html>`, `<html><head><title>504 Gateway Time-out</title></head><body><center><h1>504 Gateway Time-out</h1></center><hr><center>nginx/1.{{n}}.0</center></body></html>`,
		`<html><head><title>413 Request Entity Too Large</title></head><body><center><h1>413 Request Entity Too Large</h1></center><hr><center>nginx/1.{{n}}.0</center></body></html>`,
	}},
	{"nginx log", []string{
		`{{slashed}} [error] {{n}}#{{n}}: *{{n}} connect() failed (111: Connection refused) while connecting to upstream, client: {{ip}}, server: api, request: "POST /orders/{{id}} HTTP/1.1"`, `{{slashed}} [error] {{n}}#{{n}}: *{{n}} upstream timed out (110: Connection timed out) while reading response header from upstream, client: {{ip}}, server: api, request: "POST /orders/{{id}} HTTP/1.1"`,
	}},
	{"HTML with a request id", []string{
		`<!DOCTYPE html> <html lang="en"> <head> <title>Error</title> </head> <body> <pre>Cannot POST /orders/{{id}}</pre> </body> </html>`, `<!DOCTYPE html> <html lang="en"> <head> <title>Attention Required! | Cloudflare</title> </head> <body> Error 1020 Ray ID: {{hex}} &bull; {{sqltime}} UTC </body> </html>`,
		`<HTML><HEAD><TITLE>ERROR: The request could not be satisfied</TITLE></HEAD><BODY><H1>503 ERROR</H1> Generated by cloudfront (CloudFront) Request ID: {{b64}}</BODY></HTML>`, `<h1>Page not found</h1><p>Reference&#32;&#35;{{n}}.{{hex}}.{{epoch}}.{{hex}}</p>`, `<h1>Access denied</h1><p>Reference&#32;&#35;{{n}}.{{hex}}.{{epoch}}.{{hex}}</p>`,
	}},
	{"Apache", []string{`<title>503 Service Unavailable</title><address>Apache/2.4.{{n}} (Debian) Server at shop.example.com Port {{port}}</address>`, `<title>403 Forbidden</title><address>Apache/2.4.{{n}} (Debian) Server at shop.example.com Port {{port}}</address>`, `AH01114: HTTP: failed to make connection to backend: {{ip}} at {{clf}}`}},
	{"Envoy", []string{`upstream connect error or disconnect/reset before headers. reset reason: connection timeout`, `upstream connect error or disconnect/reset before headers. reset reason: connection termination`, `no healthy upstream`}},
	{"SOAP", []string{
		`<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><soap:Fault><faultcode>soap:Client</faultcode><faultstring>Invoice {{ord}} is closed</faultstring></soap:Fault></soap:Body></soap:Envelope>`, `<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><soap:Fault><faultcode>soap:Client</faultcode><faultstring>Invoice {{ord}} is void</faultstring></soap:Fault></soap:Body></soap:Envelope>`,
	}},
	{"Kubernetes", []string{
		`pods "billing-{{pod}}" not found`, `pods "billing-{{pod}}" is forbidden: exceeded quota: compute, requested: cpu={{n}}, used: cpu={{n}}`, `Back-off {{dur}} restarting failed container=app pod=billing-{{pod}}_shop({{uuid}})`, `Back-off pulling image "registry.example.com/app:{{short}}"`,
		`Operation cannot be fulfilled on deployments.apps "billing": the object has been modified`, `0/{{n}} nodes are available: {{n}} Insufficient memory.`, `0/{{n}} nodes are available: {{n}} Insufficient cpu.`,
	}},
	{"Docker", []string{`Error response from daemon: No such container: {{hex}}`, `Error response from daemon: Container {{hex}} is not running`, `OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not found in $PATH`, `manifest for app:{{short}} not found`}},
	{"git", []string{`fatal: bad object {{short}}`, `fatal: not a tree object: {{hex}}`, `error: pathspec '{{short}}' did not match any file(s) known to git`}},
	{"exec", []string{`/bin/sh: exit status 65: order {{id}} has no address`, `/bin/sh: exit status 66: order {{id}} has no address`, `worker.py: killed by a signal after {{dur}}`, `worker.py: exit status 1: …e File "/app/billing.py", line {{n}}, in charge ValueError: order {{id}} is void`}},
	{"relay, http", []string{
		`POST http://{{ip}}:{{port}}/hook: 503 Service Unavailable: payment gateway {{ip}} unreachable`, `POST http://{{ip}}:{{port}}/hook: 422 Unprocessable Entity: {"error":"card expired"}`, `POST http://{{ip}}:{{port}}/hook: 422 Unprocessable Entity: {"error":"unknown customer"}`,
		`POST http://{{ip}}:{{port}}/hook: 422 Unprocessable Entity`, `POST http://{{ip}}:{{port}}/hook: 409 Conflict`, `POST http://{{ip}}:{{port}}/hook: EOF`, `POST http://{{ip}}:{{port}}/hook: not finished within {{dur}}`,
	}},
	{"Rust", []string{`thread 'main' panicked at src/main.rs:{{n}}:{{n}}: index out of bounds: the len is {{n}} but the index is {{n}}`, "thread 'main' panicked at src/main.rs:{{n}}:{{n}}: called `Option::unwrap()` on a `None` value", "error: Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }", `missing field "total" at line {{n}} column {{n}}`, `missing field "vat" at line {{n}} column {{n}}`}},
	{"Ruby", []string{`undefined method 'total' for nil:NilClass (NoMethodError) app/models/order.rb:{{n}}:in 'charge'`, `undefined method 'lines' for nil:NilClass (NoMethodError) app/models/order.rb:{{n}}:in 'charge'`, `Couldn't find Order with 'id'={{id}}`, `Couldn't find Invoice with 'id'={{id}}`, `#<Order:{{ptr}}> is frozen`, `PG::UniqueViolation: ERROR: duplicate key value violates unique constraint "index_orders" DETAIL: Key (number)=({{ord}}) already exists.`, `Validation failed: Email has already been taken`, `Validation failed: Total can't be blank`}},
	{"PHP", []string{`PHP Fatal error: Uncaught Error: Call to a member function total() on null in /var/www/Order.php:{{n}}`, `PHP Fatal error: Allowed memory size of {{bytes}} exhausted (tried to allocate {{bytes}})`, `SQLSTATE[23000]: Integrity constraint violation: 1062 Duplicate entry '{{email}}' for key 'email'`, `SQLSTATE[HY000] [2002] Connection refused`, `No query results for model [App\Models\Order] {{id}}`, `No query results for model [App\Models\Invoice] {{id}}`, `cURL error 28: Operation timed out after {{ms}} with {{n}} out of {{n}} bytes received`, `cURL error 7: Failed to connect to {{ip}} port {{port}}`}},
	{"Elixir", []string{`** (MatchError) no match of right hand side value: {:error, :not_found}`, `** (exit) exited in: GenServer.call(#PID<0.{{n}}.0>, {:charge, {{id}}}, 5000)`, `** (Ecto.StaleEntryError) attempted to update a stale struct: %Order{id: {{id}}}`, `** (KeyError) key :total not found in: %{id: {{id}}}`, `** (KeyError) key :vat not found in: %{id: {{id}}}`}},
	{".NET", []string{`System.NullReferenceException: Object reference not set to an instance of an object. at Acme.Billing.Charge(Order order) in /src/Billing.cs:line {{n}}`, `System.InvalidOperationException: Sequence contains no elements at Acme.Billing.Charge(Order order) in /src/Billing.cs:line {{n}}`, `System.Threading.Tasks.TaskCanceledException: The request was canceled due to the configured HttpClient.Timeout of {{secs}} elapsing.`, `The process cannot access the file 'C:\data\{{id}}.csv' because it is being used by another process.`, `No connection could be made because the target machine actively refused it. ({{ip}}:{{port}})`}},
	{"SMTP", []string{`550 5.1.1 <{{email}}>: Recipient address rejected: User unknown in virtual mailbox table`, `552 5.2.2 <{{email}}>: Mailbox full`, `421 4.7.0 Try again later, closing connection. {{stripe}}1-{{nuid}}.{{n}} - gsmtp`, `535 5.7.8 Error: authentication failed: {{hex}}`}},
	{"S/FTP, files", []string{`SFTP: no such file {{path}}`, `disk quota exceeded: {{size}} of {{size}} used`, `checksum of part {{n}} is {{hex}}, want {{hex}}`, `upload of {{size}} refused: at most {{size}} is allowed`, `ETag "{{hex}}" does not match`}},
	{"TLS", []string{`remote error: tls: bad certificate`, `remote error: tls: unknown certificate authority`, `certificate for api.example.com expired on {{unixday}}`, `certificate for api.example.com is not valid before {{ansic}}`, `SSL routines:tls_process_server_certificate:certificate verify failed`}},
	{"LDAP", []string{`LDAP Result Code 49 "Invalid Credentials": 80090308: LdapErr: DSID-{{HEX}}, comment: AcceptSecurityContext error, data 52e`, `LDAP Result Code 32 "No Such Object": `}},
	{"dates", []string{`not before {{httpday}}`, `closed since {{long}}`, `frozen until {{euday}}`, `expired on {{usday}}`, `logged at {{clf}}`, `seen at {{epoch}}`, `valid until {{anyday}} only`, `sold on {{anyday}}, too late`}},
	{"names", []string{`customer {{name}} is locked`, `customer {{name}} has no address`, `no account for customer "{{name}}"`, `user '{{login}}' not found`, `user not found`, `user is locked`, `{"customer":"{{name}}","error":"card expired"}`, `{"customer":"{{name}}","error":"card stolen"}`, `{"customer":"required"}`, `{"customer":"unknown"}`}},
	{"quotes", []string{`customer «{{id}}» not found`, `order “{{ord}}” not found`, "order `{{uuid}}` not found", `order '{{ulid}}' is void`, `Kunde „{{hex}}“ gesperrt`, `field «total» is missing`, `field «vat» is missing`}},
	{"ids", []string{`job {{nanoid}} is gone`, `object {{ksuid}} is gone`, `commit {{short}} is gone`, `lease {{nuid}} was lost`, `blob {{b64}} cannot be read`, `token {{jwt}} was revoked`, `orders {{list}} are missing`, `updated {{rows}}, expected {{n}}`, `item {{sku}} is sold out`, `GET /orders/{{uuid}}/lines/{{n}}?page={{n}}&sort=day: gone`, `GET /orders/{{uuid}}/invoice?page={{n}}&sort=day: gone`, `wss://live.example.com/{{uuid}}: closed`, `host {{ip6}} is down`}},
	{"amounts", []string{`balance of {{money}} is too low for {{money}}`, `limit {{usd}} exceeded by {{usd}}`, `rate limit: retry in {{secs}}`, `rate limit of {{n}} requests reached, retry after {{dur}}`, `load is {{n}}%, shedding`, `slow: took {{ms}}`}},
	{"other languages", []string{
		`Bestellung {{id}} wurde nicht gefunden`, `Bestellung {{id}} wurde schon bezahlt`, `Commande n° {{ord}} introuvable`, `Commande n° {{ord}} déjà payée`, `заказ {{id}} не найден`, `заказ {{id}} уже оплачен`, `订单{{id}}不存在`, `订单{{id}}已取消`, `注文{{id}}が見つかりません`, `الطلب {{arabic}} غير موجود`, `pedido n.º {{id}} não encontrado`,
	}},
	{"cut by a handler, 1 KiB", []string{
		`KIB{"message":"The card expired","requestId":"{{uuid}}","customer":"{{id}}","at":"{{anyday}}","key":"{{pad}}","text":"LOREM`,
		`KIB{"message":"The card was stolen","requestId":"{{uuid}}","customer":"{{id}}","at":"{{anyday}}","key":"{{pad}}","text":"LOREM`,
	}},
	{"cut in the middle", []string{ // the output of a program
		`ENDSnode: exit status 1: /app/worker.js:{{n}} throw new Error('boom') ^ Error: order {{id}} is void at Module.step LOREM{{n}} Node.js v22.11.0`,
		`ENDSnode: exit status 1: /app/worker.js:{{n}} throw new Error('boom') ^ Error: order {{id}} has no address at Module.step LOREM{{n}} Node.js v22.11.0`,
		`ENDSpython: exit status 1: loaded {{n}} rules, key {{pad}}, Traceback (most recent call last): LOREM{{n}}, in charge ValueError: order {{id}} is void`,
		`ENDSpython: exit status 1: loaded {{n}} rules, key {{pad}}, Traceback (most recent call last): LOREM{{n}}, in charge ValueError: order {{id}} is paid`,
	}},
	{"cut by a handler", []string{ // after 256 bytes of the answer
		`CUT{"type":"https://example.com/probs/closed","title":"The account is closed","trace":"{{uuid}}","instance":"/account/{{id}}","detail":"The account was closed by its owner and cannot be used for payments any more; please use another one, or ask the support team for help with this"}`,
		`CUT{"type":"https://example.com/probs/frozen","title":"The account is frozen","trace":"{{uuid}}","instance":"/account/{{id}}","detail":"The account was closed by its owner and cannot be used for payments any more; please use another one, or ask the support team for help with this"}`,
	}},
	{"cut at 4 KiB", []string{
		`{"error":"too many lines","order":{{id}},"key":"{{pad}}","text":"LOREM`, `{"error":"too many coupons","order":{{id}},"key":"{{pad}}","text":"LOREM`,
	}},
}

var slot = regexp.MustCompile(`\{\{(\w+)\}\}`)

// draw fills in the values of a cause.
func draw(r *rand.Rand, cause string) string {
	text := slot.ReplaceAllStringFunc(cause, func(name string) string { return values[name[2:len(name)-2]](r) })
	lorem := strings.Repeat("the quick brown fox jumps over a lazy dog and ", 120)
	if body, ok := strings.CutPrefix(text, "KIB"); ok {
		return "POST http://10.0.0.1:9000/hook: 402 Payment Required: " + strings.Replace(body, "LOREM", lorem, 1)[:1024] + "…"
	}
	if said, ok := strings.CutPrefix(text, "ENDS"); ok {
		said = strings.Replace(said, "LOREM", lorem, 1)
		return said[:1060] + " … " + said[len(said)-2048:]
	}
	if head, ok := strings.CutSuffix(text, "LOREM"); ok {
		return retry.CleanText(head+lorem, retry.MaxErrorLen)
	}
	if body, ok := strings.CutPrefix(text, "CUT"); ok {
		return "POST http://10.0.0.1:9000/hook: 422 Unprocessable Entity: " + body[:256] + "…"
	}
	return text
}

// JSON in an error was masked whole: {"error":"card expired"} and {"error":"unknown customer"} were one group, and --like replayed or discarded
// what the operator did not mean.
func TestFingerprint_aGroupIsACause(t *testing.T) {
	if len(corpus) < 60 {
		t.Errorf("%d formats", len(corpus))
	}
	r := rand.New(rand.NewPCG(3, 4))
	seen := map[string]string{}
	for _, f := range corpus {
		for _, cause := range f.causes {
			first, sample := "", ""
			for range 300 {
				text := draw(r, cause)
				got := Of(text)
				if first == "" {
					first, sample = got, text
					if other, ok := seen[got]; ok {
						t.Errorf("%s: one group, %s, for\n  %s\n  %s", f.format, got, other, cause)
					}
					seen[got] = cause
				}
				if got != first {
					t.Errorf("%s: two groups of %s:\n  %s of %s\n  %s of %s", f.format, cause, first, sample, got, text)
					break
				}
			}
		}
	}
}

// The values make no difference, and each word makes one.
func TestFingerprint_aWordMakesAnotherGroup(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	word := regexp.MustCompile(`[A-Za-z]{4,}`)
	for _, f := range corpus {
		if strings.HasPrefix(f.format, "cut") {
			continue // what is cut off does not count
		}
		for _, cause := range f.causes {
			if strings.Contains(cause, `\u`) {
				continue
			}
			want := Of(draw(r, cause))
			for _, at := range word.FindAllStringIndex(cause, -1) {
				if from := strings.LastIndex(cause[:at[0]], "{{"); from >= 0 && strings.Index(cause[from:], "}}") > at[0]-from {
					continue
				}
				if at[1] < len(cause) && isDigit(cause[at[1]]) {
					continue // an id
				}
				if other := cause[:at[0]] + "zebra" + cause[at[1]:]; Of(draw(r, other)) == want {
					t.Errorf("%s: one group for\n  %s\n  %s", f.format, cause, other)
				}
			}
		}
	}
}

// Each kind of value, in each kind of place.
func TestFingerprint_valuesMakeNoDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 8))
	for _, place := range []string{
		"order %s not found", "order '%s' not found", `order "%s" not found`, "order `%s` not found", "order «%s» not found", "order “%s” not found", "order %s: not found", "order: %s", "order=%s is void",
		"order (%s) is void", "order [%s] is void", "order <%s> is void", "(id)=(%s)", `{"order":"%s","error":"void"}`, `{"error":"order %s is void"}`, `{\"order\":\"%s\"}`, "GET /orders/%s/lines: gone",
		"GET /orders/%s", "GET /orders?id=%s&x=y", "no order %s.", "order %s, void", "order #%s", "%s", "%s is void", "order %s…", "<id>%s</id>", "注文「%s」は無効", "order %s and %s differ", "[%s, %s]", `["%s","%s"]`,
	} {
		for _, kind := range slices.Sorted(maps.Keys(values)) {
			draw := values[kind]
			if strings.Contains("login name pad anyday list path rows secs stripe", kind) || kind == "b64" && strings.Contains(place, "/%s") {
				continue // in some places only
			}
			first, sample := "", ""
			for range 200 {
				text := strings.Replace(strings.Replace(place, "%s", draw(r), 1), "%s", draw(r), 1)
				got := Of(text)
				if first == "" {
					first, sample = got, text
				}
				if got != first {
					t.Errorf("%s: two groups:\n  %s of %s\n  %s of %s", kind, first, sample, got, text)
					break
				}
			}
		}
	}
}
