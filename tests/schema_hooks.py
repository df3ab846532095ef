"""What schemathesis needs to send lines of JSON."""

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def as_lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
