"""The log as JSON: whatever this process writes to stderr is a line of it."""

import io
import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


def log_as_json() -> None:
    """From now on, log messages, warnings, tracebacks and all other lines on stderr are JSON."""
    stream = _Lines(sys.stderr)
    sys.stderr = stream  # for what is not logged: uncaught exceptions, progress of libraries
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter())
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)


def _line(level: str, logger: str, message: str, **more: str) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "level": level, "logger": logger, "message": message}
    return json.dumps(entry | more)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        more = {}
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        return _line(record.levelname.lower(), record.name, record.getMessage(), **more)


class _Lines(io.TextIOBase):
    """Passes lines of JSON on, and makes JSON of others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rest = stream, ""

    def write(self, text: str) -> int:
        """Write the complete lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            written = line if line.startswith("{") else _line("info", "stderr", line.rstrip())
            self._stream.write(f"{written}\n")
        return len(text)

    def flush(self) -> None:
        """Write what has been passed on."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor of the stream."""
        return self._stream.fileno()
