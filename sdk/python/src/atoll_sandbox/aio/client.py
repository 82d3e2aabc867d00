"""The client: one server, one key, and its nouns."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from ..generated.models import Event, Version
from ..settings import server_key, server_url
from .sandboxes import Sandboxes, Snapshots, Threads
from .server import Keys, Providers, Secrets
from .templates import Builds, Templates
from .transport import AsyncTransport
from .volumes import Volumes


class AsyncAtoll:
    """An asynchronous client of an Atoll server.

    `url` and `api_key` are taken from `ATOLL_URL` and `ATOLL_API_KEY` if they are not given. `timeout` is how many seconds
    the server may take for an ordinary answer; calls that wait for work (a create, a command) have their own limits.
    `max_retries` is how often a request is sent again if that is safe and may help. `ca` (`ATOLL_CA`) is a file with the
    certificate authority of the server, if the system does not know it.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        max_retries: int = 2,
        ca: str | None = None,
    ) -> None:
        self._transport = transport = AsyncTransport(
            server_url(url), server_key(api_key), timeout, max_retries, ca or os.environ.get("ATOLL_CA")
        )
        self.sandboxes = Sandboxes(transport)
        self.templates = Templates(transport)
        self.volumes = Volumes(transport)
        self.snapshots = Snapshots(transport)
        self.secrets = Secrets(transport)
        self.providers = Providers(transport)
        self.threads = Threads(transport)
        self.builds = Builds(transport)
        self.keys = Keys(transport)

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._transport.url

    async def version(self) -> Version:
        """Returns the version of the server and of its API."""
        return Version(await self._transport.json("GET", "/v1/version"))

    async def events(
        self, *, sandbox: str | None = None, after: int | None = None, follow: bool = True, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """Gives events of sandboxes. With `follow` first those after `after`, then new ones until the iteration is left.

        Without `follow`: the events after `after`, or the newest ones."""
        if not follow:
            query = {"sandbox": sandbox, "after": after, "limit": limit}
            for item in (await self._transport.json("GET", "/v1/events", query=query))["items"]:
                yield Event(item)
            return
        query = {"sandbox": sandbox, "after": after, "follow": True}
        async for event in self._transport.events("GET", "/v1/events", query=query):
            yield Event(event.json())

    async def close(self) -> None:
        """Closes the connections. Sandboxes go on."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncAtoll:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
