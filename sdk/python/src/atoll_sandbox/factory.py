"""One interface over the providers: `create_sandbox(provider=…)`, or by `SANDBOX_PROVIDER`.

The provider is a name of the server's list (`container`, `docker`, `e2b`, `daytona`, …): the vendor's key is a setting of
the server, so a program needs none. The environment of the earlier system is read:

| variable | use |
|---|---|
| `SANDBOX_PROVIDER` | the provider |
| `E2B_TIMEOUT` | the lifetime in seconds of sandboxes of `e2b` |
| `DAYTONA_SERVER_URL` | the address of the server, if `ATOLL_URL` is not set and the provider is `daytona` |
| `DAYTONA_TARGET` | a label `target` of sandboxes of `daytona` |
| `SANDBOX_HOST`, `SANDBOX_PORT` | the address of the server, if `ATOLL_URL` is not set |
"""

from __future__ import annotations

import os
import posixpath
from typing import Any

from .agent.session import session_url
from .errors import NotFoundError
from .results import CommandResult, Execution
from .sync.client import Atoll
from .sync.sandbox import Sandbox

DEFAULT_TIMEOUT_S = 3600

# Names of the earlier system, for templates that have other names here.
TEMPLATES = {"python-3.11": "debian", "python-data-science": "data-science"}


def create_sandbox(
    provider: str | None = None, *, url: str | None = None, api_key: str | None = None
) -> SandboxController:
    """A controller for one sandbox at a provider; the server's default provider if none is named."""
    chosen = provider or os.environ.get("SANDBOX_PROVIDER")
    if url is None and chosen == "daytona" and not os.environ.get("ATOLL_URL"):
        url = os.environ.get("DAYTONA_SERVER_URL")
    return SandboxController(chosen, Atoll(session_url(url), api_key))


class SandboxController:
    """One sandbox. `create` makes it; as a context manager it is deleted at the end."""

    def __init__(self, provider: str | None, client: Atoll) -> None:
        self.provider = provider
        self._client = client
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, with everything else that it can do."""
        if self._sandbox is None:
            raise NotFoundError("there is no sandbox yet", code="sandbox_not_found", hint="call create()")
        return self._sandbox

    def create(
        self,
        template: str | None = None,
        timeout: int | None = None,
        git_url: str | None = None,
        image: str | None = None,
    ) -> SandboxController:
        """Creates the sandbox, from a template or an image, and clones a repository into it."""
        options: dict[str, Any] = {"timeout_s": timeout or self._lifetime()}
        if self.provider is not None:
            options["provider"] = self.provider
        if image is not None:
            options["image"] = image
        elif template is not None:
            options["template"] = self._template(template)
        target = os.environ.get("DAYTONA_TARGET")
        if target and self.provider == "daytona":
            options["labels"] = {"target": target}
        self._sandbox = self._client.sandboxes.create(**options)
        if git_url is not None:
            self._clone(git_url)
        return self

    def _lifetime(self) -> int:
        asked = os.environ.get("E2B_TIMEOUT") if self.provider == "e2b" else None
        return int(asked) if asked else DEFAULT_TIMEOUT_S

    def _template(self, name: str) -> str:
        """The template, or what it is called here if the server has none of that name."""
        try:
            self._client.templates.get(name)
        except NotFoundError:
            return TEMPLATES.get(name, name)
        return name

    def _clone(self, git_url: str) -> None:
        name = posixpath.basename(git_url.rstrip("/")).removesuffix(".git") or "repository"
        try:
            self.sandbox.git.clone(git_url, name)
        except BaseException:
            self.delete()
            raise

    def run_command(self, command: str, *, timeout: float | None = None, cwd: str | None = None) -> CommandResult:
        """Runs a command of the shell."""
        return self.sandbox.commands.run(command, timeout_s=timeout, cwd=cwd)

    def execute(self, code: str, *, timeout: float | None = None) -> Execution:
        """Runs Python code; what it defines stays for the next code."""
        return self.sandbox.code.run(code, timeout_s=timeout)

    def read_file(self, path: str) -> str:
        """Reads a text file."""
        return self.sandbox.files.read_text(path)

    def write_file(self, path: str, content: str | bytes) -> None:
        """Writes a file."""
        self.sandbox.files.write(path, content)

    def get_preview_url(self, port: int) -> str:
        """A link to a port of the sandbox, valid for an hour."""
        return self.sandbox.previews.create(port).url

    def stop(self) -> None:
        """Ends the processes and keeps the files; the next call starts the sandbox again."""
        self.sandbox.stop()

    def delete(self) -> None:
        """Deletes the sandbox, if there is one."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.delete()

    def __enter__(self) -> SandboxController:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.delete()
        finally:
            self._client.close()
