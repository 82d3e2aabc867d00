"""One sandbox of an agent under one interface, whatever provider it is at. See `atoll_sandbox.factory`."""

from __future__ import annotations

import os

from ..controller_settings import SandboxRequest, daytona_server, lifetime_s, session_url
from ..errors import ConflictError, NotFoundError, UnsupportedError
from ..results import CommandResult, Execution
from .client import AsyncAtoll
from .controller_places import DaytonaPlace, ServerPlace
from .daytona import AsyncDaytona
from .daytona import AsyncSandbox as DaytonaSandbox
from .sandbox import AsyncSandbox


class AsyncSandboxController:
    """One sandbox. `create` makes it; as a context manager it is deleted at the end.

    Relative paths are below `/workspace`, where commands run.
    """

    def __init__(self, provider: str | None = None, *, url: str | None = None, api_key: str | None = None) -> None:
        self.provider = provider or os.environ.get("SANDBOX_PROVIDER") or None
        daytona = daytona_server(self.provider, url, api_key)
        self._place: ServerPlace | DaytonaPlace
        if daytona is None:
            self._place = ServerPlace(AsyncAtoll(session_url(url), api_key))
        else:
            self._place = DaytonaPlace(AsyncDaytona(daytona))

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox at Atoll, with everything else that it can do."""
        place = self._here()
        if isinstance(place, ServerPlace):
            return place.sandbox
        raise UnsupportedError("the sandbox is at a Daytona server", code="unsupported", hint="use daytona_sandbox")

    @property
    def daytona_sandbox(self) -> DaytonaSandbox:
        """The sandbox at the Daytona server of `DAYTONA_SERVER_URL`, with everything else that it can do."""
        place = self._here()
        if isinstance(place, DaytonaPlace):
            return place.sandbox
        raise UnsupportedError("the sandbox is at Atoll", code="unsupported", hint="use sandbox, or set DAYTONA_SERVER_URL")

    async def _create(self, request: SandboxRequest) -> str:
        if self._place.is_used:
            hint = "delete() it first, or make another controller"
            raise ConflictError("this controller has a sandbox already", code="already_exists", hint=hint)
        return await self._place.create(request)

    async def create(
        self,
        template: str | None = None,
        timeout: int | None = None,
        git_url: str | None = None,
        image: str | None = None,
    ) -> str:
        """Creates the sandbox, from a template or an image, clones a repository into its workspace, and returns its id.

        It is deleted `timeout` seconds later at the latest.
        """
        seconds = timeout or lifetime_s(self.provider)
        return await self._create(SandboxRequest(self.provider, template, image, seconds, git_url))

    async def run_command(self, command: str, *, timeout: float | None = None, cwd: str | None = None) -> CommandResult:
        """Runs a command of the shell in the workspace."""
        return await self._here().run(command, timeout, cwd)

    async def execute(self, code: str, *, timeout: float | None = None) -> Execution:
        """Runs Python code. What it defines stays for the next code, but not at a server of Daytona's protocol."""
        return await self._here().execute(code, timeout)

    async def read_file(self, path: str) -> str:
        """Reads a text file."""
        return await self._here().read(path)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Writes a file."""
        await self._here().write(path, content)

    async def get_preview_url(self, port: int) -> str:
        """A link to a port of the sandbox, valid for an hour."""
        return await self._here().preview_url(port)

    async def stop(self) -> None:
        """Ends the processes and keeps the files; the next call starts the sandbox again."""
        await self._here().stop()

    async def delete(self) -> None:
        """Deletes the sandbox, if there is one."""
        await self._place.delete()

    async def close(self) -> None:
        """Closes the connections. The sandbox goes on."""
        await self._place.close()

    def _here(self) -> ServerPlace | DaytonaPlace:
        if not self._place.is_used:
            raise NotFoundError("there is no sandbox yet", code="sandbox_not_found", hint="call create()")
        return self._place

    async def __aenter__(self) -> AsyncSandboxController:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.delete()
        finally:
            await self.close()
