"""What the environment says about the sandbox of an agent, and what a create asks for. Pure.

| variable | use |
|---|---|
| `SANDBOX_PROVIDER` | the provider |
| `E2B_TIMEOUT` | the lifetime in seconds of sandboxes of `e2b` |
| `DAYTONA_SERVER_URL` | the address of a Daytona server, to which the provider `daytona` then talks by Daytona's protocol |
| `DAYTONA_API_KEY`, `DAYTONA_TARGET` | the key there, and the target of new sandboxes there |
| `SANDBOX_HOST`, `SANDBOX_PORT` | the address of Atoll, if `ATOLL_URL` is not set |
"""

from __future__ import annotations

import os
import posixpath
from typing import NamedTuple

from .daytona_settings import DaytonaConfig

DEFAULT_TIMEOUT_S = 3600
DEFAULT_PORT = "8090"
# The name that every server resolves to a template with Python; a provider of its own takes it as its default.
DEFAULT_TEMPLATE = "base"
# The provider that starts from the templates of the server.
OWN_PROVIDER = "container"
# Names of the earlier system, for templates that have other names here.
TEMPLATES = {"python-3.11": DEFAULT_TEMPLATE, "python-data-science": "data-science"}


class SandboxRequest(NamedTuple):
    """What a create asks for."""

    provider: str | None
    template: str | None
    image: str | None
    timeout_s: int
    git_url: str | None

    def is_elsewhere(self) -> bool:
        """Whether the provider has templates of its own, and not those of the server."""
        return self.provider not in (None, OWN_PROVIDER)

    def repository(self) -> str:
        """The name of the folder into which the repository is cloned."""
        return posixpath.basename((self.git_url or "").rstrip("/")).removesuffix(".git") or "repository"


def lifetime_s(provider: str | None) -> int:
    """The lifetime of a sandbox whose create names none."""
    asked = os.environ.get("E2B_TIMEOUT") if provider == "e2b" else None
    return int(asked) if asked else DEFAULT_TIMEOUT_S


def daytona_server(provider: str | None, url: str | None, api_key: str | None) -> DaytonaConfig | None:
    """The Daytona server to talk to, if there is one: then Atoll takes no part in it."""
    address = os.environ.get("DAYTONA_SERVER_URL")
    if provider != "daytona" or url is not None or not address:
        return None
    return DaytonaConfig(api_key=api_key, api_url=address)


def session_url(url: str | None) -> str | None:
    """The address of Atoll: as given, of `ATOLL_URL`, or of `SANDBOX_HOST` and `SANDBOX_PORT`."""
    host, port = os.environ.get("SANDBOX_HOST"), os.environ.get("SANDBOX_PORT")
    if url or os.environ.get("ATOLL_URL") or not (host or port):
        return url
    return f"http://{host or 'localhost'}:{port or DEFAULT_PORT}"
