# Made from ../aio/egress.py by scripts/generate.py; do not edit.

"""Outbound traffic of a sandbox: what was decided, and the policy that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..generated.models import Egress, EgressVerdict, NetworkPolicy
from .transport import Transport


class EgressLog:
    """Outbound traffic of one sandbox. Reading never wakes it."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/egress"

    def log(
        self,
        *,
        limit: int | None = None,
        since: datetime | str | None = None,
        verdict: EgressVerdict | None = None,
    ) -> list[Egress]:
        """Returns the connection attempts and the decisions, newest last."""
        query: dict[str, Any] = {"limit": limit, "since": as_time(since), "verdict": verdict}
        return [Egress(item) for item in (self._transport.json("GET", self._path, query=query))["items"]]

    def follow(self, *, verdict: EgressVerdict | None = None) -> Iterator[Egress]:
        """Gives the stored decisions, then new ones until the iteration is left."""
        query = {"follow": True, "verdict": verdict}
        for event in self._transport.events("GET", self._path, query=query):
            yield Egress(event.json())

    def learned_policy(self) -> NetworkPolicy:
        """Returns the smallest policy that allows all recorded connections, for `network` of a create or update."""
        policy: NetworkPolicy = self._transport.json("GET", f"{self._path}/policy")
        return policy


def as_time(moment: datetime | str | None) -> str | None:
    """A time as the API takes it. A time without a zone is UTC."""
    if isinstance(moment, datetime):
        return moment.isoformat() + ("Z" if moment.tzinfo is None else "")
    return moment
