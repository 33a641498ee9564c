#!/bin/sh
# A relay worker: one line of JSON in for each message, one line out. It has no JSON parser: an id holds no quotes, and is the
# first field. What else it needs of a message it finds by patterns; a body that has to be parsed is for another language.
echo '{"ready":true}'
while IFS= read -r line; do
	case $line in '{"cancel":'*) continue ;; esac
	rest=${line#'{"id":"'}
	id=${rest%%'"'*}
	case $line in
	*'"data":"'*'\"id\":'*) verdict='"ack"' ;;
	*) verdict='"dead","error":"an order without an id"' ;;
	esac
	printf '{"id":"%s","verdict":%s}\n' "$id" "$verdict"
done
