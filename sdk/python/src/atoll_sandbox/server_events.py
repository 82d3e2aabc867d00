"""Server-sent events: a parser that takes bytes as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

# LIMIT: an event of the server is at most some MiB; more without an end is not a stream of events.
MAX_EVENT_BYTES = 64 << 20


class ServerEvent(NamedTuple):
    """One event."""

    name: str
    text: str
    id: str | None

    def json(self) -> dict[str, Any]:
        """Its data, which is a JSON object in every stream of the API."""
        value: dict[str, Any] = json.loads(self.text) if self.text else {}
        return value


class EventParser:
    """Collects bytes and gives whole events. Comments, which keep a connection alive, give nothing."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = "message"
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that end in this chunk."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError("a server-sent event has no end")
        for line in lines:
            event = self._line(line.rstrip(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._end()
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "id":
            self._id = value
        return None

    def _end(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data = "message", []
        if not data and name == "message":
            return None
        return ServerEvent(name, "\n".join(data), self._id)
