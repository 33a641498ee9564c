#!/bin/sh
# The handler of `make run`. It gets a message on standard input and its metadata in RELAY_ variables, and says by its
# exit code what became of it: 0 done, 65 never, 75 later, anything else failed.
set -eu
order=$(cat)
state=relay-data/demo
mkdir -p "$state"

case "$1 $RELAY_SUBJECT" in
"billing orders.us.created")
	# The payment gateway of the US is down for four seconds from the first order on.
	mark=$state/us-outage-$PPID
	now=$(date +%s)
	[ -e "$mark" ] || echo "$now" > "$mark"
	if [ $((now - $(cat "$mark"))) -lt 4 ]; then
		echo "payment gateway us: connection refused" >&2
		exit 1
	fi
	;;
"shipping "*)
	# One order has no address. It can never be shipped, until somebody mends the handler.
	case $order in
	*'"address":null'*)
		if [ ! -e "$state/mended" ]; then
			echo "order has no address" >&2
			exit 1
		fi
		;;
	esac
	;;
esac
