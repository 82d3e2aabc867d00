"""Outbound traffic of a sandbox: what was decided, and the policy that it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from ..generated.models import Egress, EgressVerdict, NetworkPolicy
from .transport import AsyncTransport


class EgressLog:
    """Outbound traffic of one sandbox. Reading never wakes it."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/egress"

    async def log(
        self,
        *,
        limit: int | None = None,
        since: datetime | str | None = None,
        verdict: EgressVerdict | None = None,
    ) -> list[Egress]:
        """Returns the connection attempts and the decisions, newest last."""
        query: dict[str, Any] = {"limit": limit, "since": as_time(since), "verdict": verdict}
        return [Egress(item) for item in (await self._transport.json("GET", self._path, query=query))["items"]]

    async def follow(self, *, verdict: EgressVerdict | None = None) -> AsyncIterator[Egress]:
        """Gives the stored decisions, then new ones until the iteration is left."""
        query = {"follow": True, "verdict": verdict}
        async for event in self._transport.events("GET", self._path, query=query):
            yield Egress(event.json())

    async def learned_policy(self) -> NetworkPolicy:
        """Returns the smallest policy that allows all recorded connections, for `network` of a create or update."""
        policy: NetworkPolicy = await self._transport.json("GET", f"{self._path}/policy")
        return policy


def as_time(moment: datetime | str | None) -> str | None:
    """A time as the API takes it. A time without a zone is UTC."""
    if isinstance(moment, datetime):
        return moment.isoformat() + ("Z" if moment.tzinfo is None else "")
    return moment
