#!/usr/bin/env python3
"""A relay worker: one line of JSON in for each message, one line out. Run it with python3 -u, or flush as here."""
import json
import sys


def handle(message):
    order = json.loads(message["data"])
    if "id" not in order:
        return {"verdict": "dead", "error": "an order without an id"}
    return {"verdict": "ack", "result": {"billed": order["id"]}}


def say(answer):
    print(json.dumps(answer), flush=True)


say({"ready": True})
for line in sys.stdin:
    message = json.loads(line)
    if "cancel" in message:  # nobody waits for that message any more; here it is done already
        continue
    try:
        answer = handle(message)
    except Exception as error:
        answer = {"verdict": "retry", "error": str(error)}
    say({"id": message["id"], **answer})
