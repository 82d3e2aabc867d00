"""The base of every answer: the JSON object of the server with typed attributes.

A field that this version does not know is kept as an attribute and in `raw`; a field that is absent is `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Model:
    """An answer of the server. `raw` is the JSON object that it was made from."""

    raw: dict[str, Any]

    # How a field becomes something other than its JSON value: (attribute, function), by the name of the field.
    _convert: ClassVar[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {}

    def __init__(self, raw: dict[str, Any]) -> None:
        attributes = self.__dict__
        attributes.update(raw)
        attributes["raw"] = raw
        for field, (attribute, convert) in self._convert.items():
            value = raw.get(field)
            if value is not None:
                attributes[attribute] = convert(value)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.raw.items())
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and type(self) is type(other) and self.raw == other.raw

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def each(convert: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """Converts every element of a list."""
    return lambda values: [convert(value) for value in values]


def same(value: Any) -> Any:
    """Keeps a value; for fields whose name is a keyword of Python."""
    return value


def parse_time(text: str) -> datetime:
    """Parses a time of the API, such as `2026-01-02T03:04:05.678901234Z`. Digits after the microseconds are dropped."""
    moment, fraction, zone = text, "", "+00:00"
    if moment.endswith(("Z", "z")):
        moment = moment[:-1]
    elif moment[-6:-5] in ("+", "-"):
        moment, zone = moment[:-6], moment[-6:]
    if "." in moment:
        moment, fraction = moment.split(".", 1)
        fraction = "." + fraction[:6].ljust(6, "0")
    return datetime.fromisoformat(moment + fraction + zone)
