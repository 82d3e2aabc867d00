"""The address of the server and the key: arguments first, then the environment."""

from __future__ import annotations

import os
from urllib.parse import quote

from .errors import AuthenticationError, InvalidError

DEFAULT_URL = "http://127.0.0.1:7070"
KEY_HINT = "make one with `atoll key create` and pass it as api_key or set ATOLL_API_KEY"


def server_url(url: str | None) -> str:
    """The address of the server without a slash at the end."""
    chosen = (url or os.environ.get("ATOLL_URL") or DEFAULT_URL).rstrip("/")
    if not chosen.startswith(("http://", "https://")):
        raise InvalidError(
            f"{chosen!r} is not an address of a server",
            code="invalid_argument",
            hint="it begins with http:// or https://",
            field="url",
        )
    return chosen


def server_key(api_key: str | None) -> str:
    """The key."""
    chosen = api_key or os.environ.get("ATOLL_API_KEY")
    if not chosen:
        raise AuthenticationError("missing API key", code="missing_key", hint=KEY_HINT, field="api_key")
    return chosen


def segment(part: object) -> str:
    """A value as one part of a path."""
    return quote(str(part), safe="")
