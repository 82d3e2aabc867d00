"""One interface over the providers: `create_sandbox(provider=…)`, or by `SANDBOX_PROVIDER`.

    sandbox = await create_sandbox()
    sandbox_id = await sandbox.create(template="python-3.11", timeout=3600)
    await sandbox.run_command("python app.py")
    await sandbox.delete()

Without `await` the same names block: `with create_sandbox().create() as box: box.run_command("python app.py")`.

The provider is a name of the server's list (`container`, `docker`, `e2b`, `daytona`, …): the vendor's key is a setting of
the server, so a program needs none. `controller_settings` lists the variables that are read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .aio.controller import AsyncSandboxController
from .controller_settings import SandboxRequest, lifetime_s
from .sync.controller import SandboxController as BlockingController

__all__ = [
    "AsyncSandboxController",
    "CreatedSandbox",
    "DaytonaSandbox",
    "E2BSandbox",
    "SandboxController",
    "create_sandbox",
]


def create_sandbox(
    provider: str | None = None, *, url: str | None = None, api_key: str | None = None
) -> SandboxController:
    """A controller for one sandbox at a provider; the server's default provider if none is named."""
    return SandboxController(provider, url=url, api_key=api_key)


class SandboxController(BlockingController):
    """One sandbox, with calls that block. Awaited, it is the same with calls that are awaited."""

    def __init__(self, provider: str | None = None, *, url: str | None = None, api_key: str | None = None) -> None:
        super().__init__(provider, url=url, api_key=api_key)
        self._settings: dict[str, Any] = {"url": url, "api_key": api_key}

    def create(
        self,
        template: str | None = None,
        timeout: int | None = None,
        git_url: str | None = None,
        image: str | None = None,
    ) -> CreatedSandbox:
        """Creates the sandbox, from a template or an image, clones a repository into its workspace, and returns its id.

        It is deleted `timeout` seconds later at the latest. The id is also the controller: `with box.create() as box:`.
        """
        seconds = timeout or lifetime_s(self.provider)
        made = self._create(SandboxRequest(self.provider, template, image, seconds, git_url))
        return CreatedSandbox(made, self)

    def __enter__(self) -> SandboxController:
        return self

    def __await__(self) -> Generator[Any, None, AsyncSandboxController]:
        return ready(AsyncSandboxController(self.provider, **self._settings)).__await__()


class CreatedSandbox(str):
    """The id of a sandbox that a controller made. What the controller can do, it can do too."""

    _controller: SandboxController

    def __new__(cls, id: str, controller: SandboxController) -> CreatedSandbox:
        made = super().__new__(cls, id)
        made._controller = controller
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def __enter__(self) -> SandboxController:
        return self._controller

    def __exit__(self, *error: object) -> None:
        self._controller.__exit__(*error)

    def __await__(self) -> Generator[Any, None, str]:
        return ready(str(self)).__await__()


class E2BSandbox(AsyncSandboxController):
    """A sandbox of the provider `e2b`. `E2B_TIMEOUT` is its lifetime in seconds."""

    def __init__(self, *, url: str | None = None, api_key: str | None = None) -> None:
        super().__init__("e2b", url=url, api_key=api_key)


class DaytonaSandbox(AsyncSandboxController):
    """A sandbox of the provider `daytona`, or of the Daytona server of `DAYTONA_SERVER_URL`."""

    def __init__(self, *, url: str | None = None, api_key: str | None = None) -> None:
        super().__init__("daytona", url=url, api_key=api_key)


async def ready(value: Any) -> Any:
    """A value that can be awaited."""
    return value
