"""Atoll as a sandbox provider of the coding CLI of Deep Agents: `dcode --sandbox atoll`.

Its entry point is in the group `deepagents_code.sandbox_providers`. The server is that of `ATOLL_URL` and `ATOLL_API_KEY`.
"""

from __future__ import annotations

from typing import Any

from deepagents_code.integrations.sandbox_provider import (
    SandboxError,
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from .deepagents import AtollBackend
from .errors import AtollError, NotFoundError
from .owned import end_with_this_process
from .sync.client import Atoll

# What sandboxes of the built-in templates have as home and working directory.
WORKING_DIR = "/home/user"


# A new sandbox ends with the CLI. If this machine ends instead, it is stopped and later deleted.
TIMERS = {"auto_stop_s": 3600, "auto_delete_s": 24 * 3600}


class AtollProvider(SandboxProvider):
    """Creates sandboxes, finds them again by their id or name, and deletes them."""

    def __init__(self) -> None:
        self._client: Atoll | None = None

    def client(self) -> Atoll:
        """The client, made when it is needed: the CLI lists providers that have no key."""
        if self._client is None:
            self._client = Atoll()
        return self._client

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What the CLI shows of the provider."""
        return SandboxProviderMetadata(
            name="atoll",
            working_dir=WORKING_DIR,
            install=SandboxInstallHint(kind="package", name="atoll-sandbox[deepagents]"),
            supports_sandbox_id=True,
            supports_snapshot_name=True,
            backend_module="atoll_sandbox.deepagents",
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> AtollBackend:
        """A sandbox by its id or name, or a new one. `kwargs` are the fields of a create, such as `template` or `snapshot`."""
        timeout = kwargs.pop("timeout", None)
        try:
            sandboxes = self.client().sandboxes
            if sandbox_id is None:
                options: dict[str, Any] = {**TIMERS, **kwargs}
                sandbox = sandboxes.create(**options)
                # The CLI ends its server by a signal, and then does not always come to `delete`.
                end_with_this_process(sandbox.id)
            else:
                sandbox = sandboxes.get(sandbox_id)
        except NotFoundError as error:
            raise SandboxNotFoundError(str(error)) from error
        except AtollError as error:
            raise SandboxError(str(error)) from error
        return AtollBackend(sandbox) if timeout is None else AtollBackend(sandbox, timeout=int(timeout))

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Deletes a sandbox; one that does not exist is deleted."""
        try:
            self.client().sandboxes.get(sandbox_id).delete()
        except NotFoundError:
            return
        except AtollError as error:
            raise SandboxError(str(error)) from error
