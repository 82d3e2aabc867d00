"""When a request is sent again, and after how long. Pure: no clock, no network."""

from __future__ import annotations

import random

from .errors import AtollError

# LIMIT: a caller that waits longer is better served by the error.
MAX_WAIT_S = 30.0
FIRST_WAIT_S = 0.25

# Codes that say "not now". `quota_exceeded` and `sandbox_exhausted` are 429 too, but they do not pass by waiting.
PASSING = frozenset(
    {"rate_limited", "no_capacity", "wake_failed", "archive_unavailable", "registry_unavailable", "sandbox_unavailable"}
)


def is_passing(error: AtollError) -> bool:
    """Whether the same request may succeed a moment later."""
    if error.code in PASSING:
        return True
    # Not from Atoll itself but from a proxy in front of it.
    return error.status in (502, 503, 504) and error.code == "internal"


def wait_s(attempt: int, retry_after: str | None) -> float | None:
    """Seconds before attempt number `attempt` (from 1); `None` if the server asks for a longer wait than is sensible."""
    if retry_after is not None:
        try:
            asked = float(retry_after)
        except ValueError:
            asked = FIRST_WAIT_S
        return asked if asked <= MAX_WAIT_S else None
    longest = min(FIRST_WAIT_S * 2**attempt, MAX_WAIT_S)
    return random.uniform(longest / 2, longest)
