"""Previews: ports of a sandbox that can be reached through the server."""

from __future__ import annotations

from typing import Any, List

from ..results import Preview
from ..settings import segment
from .transport import AsyncTransport


class Previews:
    """Previews of one sandbox."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/previews"

    async def create(self, port: int, *, expires_s: int | None = None, public: bool = False) -> Preview:
        """Opens a port. Its `url` has a token that expires; with `public` everyone may use it without one."""
        body = {"port": port, "public": public, **({} if expires_s is None else {"expires_s": expires_s})}
        return self._preview(await self._transport.json("POST", self._path, body=body))

    def _preview(self, answer: dict[str, Any]) -> Preview:
        return Preview({**answer, "path_url": self._transport.url + answer["path"]})

    async def list(self) -> List[Preview]:
        """Lists the open previews, without their tokens."""
        return [self._preview(item) for item in (await self._transport.json("GET", self._path))["items"]]

    async def delete(self, preview: str) -> None:
        """Closes a preview: the next request is refused."""
        await self._transport.json("DELETE", f"{self._path}/{segment(preview)}")
