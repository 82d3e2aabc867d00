# Made from ../aio/client.py by scripts/generate.py; do not edit.

"""The client: one server, one key, and its nouns."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..generated.models import Event, Version
from ..settings import server_key, server_url
from .sandboxes import Sandboxes, Snapshots, Threads
from .server import Keys, Providers, Secrets
from .templates import Builds, Templates
from .transport import Transport
from .volumes import Volumes


class Atoll:
    """An blocking client of an Atoll server.

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
        self._transport = transport = Transport(
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

    def version(self) -> Version:
        """Returns the version of the server and of its API."""
        return Version(self._transport.json("GET", "/v1/version"))

    def events(
        self, *, sandbox: str | None = None, after: int | None = None, follow: bool = True, limit: int | None = None
    ) -> Iterator[Event]:
        """Gives events of sandboxes. With `follow` first those after `after`, then new ones until the iteration is left.

        Without `follow`: the events after `after`, or the newest ones."""
        if not follow:
            query = {"sandbox": sandbox, "after": after, "limit": limit}
            for item in (self._transport.json("GET", "/v1/events", query=query))["items"]:
                yield Event(item)
            return
        query = {"sandbox": sandbox, "after": after, "follow": True}
        for event in self._transport.events("GET", "/v1/events", query=query):
            yield Event(event.json())

    def close(self) -> None:
        """Closes the connections. Sandboxes go on."""
        self._transport.close()

    def __enter__(self) -> Atoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
