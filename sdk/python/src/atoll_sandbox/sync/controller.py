# Made from ../aio/controller.py by scripts/generate.py; do not edit.

"""One sandbox of an agent under one interface, whatever provider it is at. See `atoll_sandbox.factory`."""

from __future__ import annotations

import os

from ..controller_settings import SandboxRequest, daytona_server, lifetime_s, session_url
from ..errors import ConflictError, NotFoundError, UnsupportedError
from ..results import CommandResult, Execution
from .client import Atoll
from .controller_places import DaytonaPlace, ServerPlace
from .daytona import Daytona
from .daytona import Sandbox as DaytonaSandbox
from .sandbox import Sandbox


class SandboxController:
    """One sandbox. `create` makes it; as a context manager it is deleted at the end.

    Relative paths are below `/workspace`, where commands run.
    """

    def __init__(self, provider: str | None = None, *, url: str | None = None, api_key: str | None = None) -> None:
        self.provider = provider or os.environ.get("SANDBOX_PROVIDER") or None
        daytona = daytona_server(self.provider, url, api_key)
        self._place: ServerPlace | DaytonaPlace
        if daytona is None:
            self._place = ServerPlace(Atoll(session_url(url), api_key))
        else:
            self._place = DaytonaPlace(Daytona(daytona))

    @property
    def sandbox(self) -> Sandbox:
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

    def _create(self, request: SandboxRequest) -> str:
        if self._place.is_used:
            hint = "delete() it first, or make another controller"
            raise ConflictError("this controller has a sandbox already", code="already_exists", hint=hint)
        return self._place.create(request)

    def create(
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
        return self._create(SandboxRequest(self.provider, template, image, seconds, git_url))

    def run_command(self, command: str, *, timeout: float | None = None, cwd: str | None = None) -> CommandResult:
        """Runs a command of the shell in the workspace."""
        return self._here().run(command, timeout, cwd)

    def execute(self, code: str, *, timeout: float | None = None) -> Execution:
        """Runs Python code. What it defines stays for the next code, but not at a server of Daytona's protocol."""
        return self._here().execute(code, timeout)

    def read_file(self, path: str) -> str:
        """Reads a text file."""
        return self._here().read(path)

    def write_file(self, path: str, content: str | bytes) -> None:
        """Writes a file."""
        self._here().write(path, content)

    def get_preview_url(self, port: int) -> str:
        """A link to a port of the sandbox, valid for an hour."""
        return self._here().preview_url(port)

    def stop(self) -> None:
        """Ends the processes and keeps the files; the next call starts the sandbox again."""
        self._here().stop()

    def delete(self) -> None:
        """Deletes the sandbox, if there is one."""
        self._place.delete()

    def close(self) -> None:
        """Closes the connections. The sandbox goes on."""
        self._place.close()

    def _here(self) -> ServerPlace | DaytonaPlace:
        if not self._place.is_used:
            raise NotFoundError("there is no sandbox yet", code="sandbox_not_found", hint="call create()")
        return self._place

    def __enter__(self) -> SandboxController:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.delete()
        finally:
            self.close()
