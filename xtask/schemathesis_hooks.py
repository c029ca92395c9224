"""How schemathesis writes the bodies it has no serializer for: lines of JSON."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/ndjson", "application/jsonl")
def lines(context, value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="replace")
