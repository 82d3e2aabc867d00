"""Where the sandbox of a controller is: at a provider of Atoll, or at a Daytona server."""

from __future__ import annotations

import math
import posixpath
from typing import Any

from ..controller_settings import DEFAULT_TEMPLATE, TEMPLATES, SandboxRequest
from ..daytona_settings import CreateSandboxParams
from ..errors import NotFoundError
from ..results import CommandResult, Execution
from ..workspace_script import FALLBACK, PREPARE, WORKSPACE, owner_of
from .client import AsyncAtoll
from .daytona import AsyncDaytona
from .daytona import AsyncSandbox as DaytonaSandbox
from .sandbox import AsyncSandbox
from .workspace import prepare_workspace

PREVIEW_S = 3600


class ServerPlace:
    """A sandbox at a provider of Atoll."""

    def __init__(self, client: AsyncAtoll) -> None:
        self._client = client
        self._sandbox: AsyncSandbox | None = None
        self._root = WORKSPACE
        self._context: str | None = None

    @property
    def is_used(self) -> bool:
        """Whether there is a sandbox."""
        return self._sandbox is not None

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox."""
        assert self._sandbox is not None, "a caller checks is_used"
        return self._sandbox

    async def create(self, request: SandboxRequest) -> str:
        options: dict[str, Any] = {"timeout_s": request.timeout_s, "on_timeout": "delete"}
        if request.provider is not None:
            options["provider"] = request.provider
        if request.image is not None:
            options["image"] = request.image
        else:
            options["template"] = await self._template(request.template)
        sandbox = await self._create(options, request)
        try:
            self._root = await prepare_workspace(sandbox)
            if request.git_url is not None:
                await sandbox.git.clone(request.git_url, posixpath.join(self._root, request.repository()))
        except BaseException:
            await sandbox.delete()
            raise
        self._sandbox, self._context = sandbox, None
        return sandbox.id

    async def _create(self, options: dict[str, Any], request: SandboxRequest) -> AsyncSandbox:
        try:
            return await self._client.sandboxes.create(**options)
        except NotFoundError as error:
            # An account at a vendor has templates of its own, and not those of the earlier system: its default is meant.
            if error.code != "template_not_found" or request.template not in TEMPLATES or not request.is_elsewhere():
                raise
        options["template"] = DEFAULT_TEMPLATE
        return await self._client.sandboxes.create(**options)

    async def _template(self, name: str | None) -> str:
        """The template, or what it is called here if the server has none of that name."""
        if name is None:
            return DEFAULT_TEMPLATE
        if name in TEMPLATES:
            try:
                await self._client.templates.get(name)
            except NotFoundError:
                return TEMPLATES[name]
        return name

    def _path(self, path: str | None) -> str:
        return posixpath.normpath(posixpath.join(self._root, path or ""))

    async def run(self, command: str, timeout: float | None, cwd: str | None) -> CommandResult:
        return await self.sandbox.commands.run(command, timeout_s=timeout, cwd=self._path(cwd))

    async def execute(self, code: str, timeout: float | None) -> Execution:
        if self._context is None:
            self._context = (await self.sandbox.code.contexts.create(cwd=self._root)).id
        return await self.sandbox.code.run(code, context=self._context, timeout_s=timeout)

    async def read(self, path: str) -> str:
        return await self.sandbox.files.read_text(self._path(path))

    async def write(self, path: str, content: str | bytes) -> None:
        await self.sandbox.files.write(self._path(path), content)

    async def preview_url(self, port: int) -> str:
        return (await self.sandbox.previews.create(port, expires_s=PREVIEW_S)).url

    async def stop(self) -> None:
        await self.sandbox.stop()
        self._context = None

    async def delete(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.delete()

    async def close(self) -> None:
        await self._client.close()


class DaytonaPlace:
    """A sandbox at a Daytona server, by Daytona's protocol."""

    def __init__(self, client: AsyncDaytona) -> None:
        self._client = client
        self._sandbox: DaytonaSandbox | None = None
        self._root = WORKSPACE

    @property
    def is_used(self) -> bool:
        """Whether there is a sandbox."""
        return self._sandbox is not None

    @property
    def sandbox(self) -> DaytonaSandbox:
        """The sandbox."""
        assert self._sandbox is not None, "a caller checks is_used"
        return self._sandbox

    async def create(self, request: SandboxRequest) -> str:
        # The names of the earlier system are no snapshots there: its default is meant.
        snapshot = None if request.template in TEMPLATES else request.template
        params = CreateSandboxParams(
            language="python",
            snapshot=None if request.image else snapshot,
            image=request.image,
            ttl_minutes=math.ceil(request.timeout_s / 60),
        )
        sandbox = await self._client.create(params)
        try:
            self._root = await self._prepare(sandbox)
            if request.git_url is not None:
                await sandbox.git.clone(request.git_url, posixpath.join(self._root, request.repository()))
        except BaseException:
            await sandbox.delete()
            raise
        self._sandbox = sandbox
        return sandbox.id

    @staticmethod
    async def _prepare(sandbox: DaytonaSandbox) -> str:
        """The workspace; below the working directory where the user of the sandbox may make nothing in `/`."""
        done = await sandbox.process.execute_command(PREPARE)
        if done.exit_code != 0:
            # At Atoll root can make it; another server runs the script as before.
            owner = {"OWNER": owner_of(done.result)}
            done = await sandbox.process.execute_command(PREPARE, env=owner, user="root")
        if done.exit_code == 0:
            return WORKSPACE
        done = await sandbox.process.execute_command(f"mkdir -p {FALLBACK} && cd {FALLBACK} && pwd")
        return done.result.strip()

    async def _running(self) -> DaytonaSandbox:
        """The sandbox; a stopped one is started first, as at Atoll."""
        if self.sandbox.state == "stopped":
            await self.sandbox.start()
        return self.sandbox

    def _path(self, path: str | None) -> str:
        return posixpath.normpath(posixpath.join(self._root, path or ""))

    async def run(self, command: str, timeout: float | None, cwd: str | None) -> CommandResult:
        sandbox = await self._running()
        done = await sandbox.process.execute_command(command, cwd=self._path(cwd), timeout=timeout)
        return CommandResult({"stdout": done.result, "stderr": "", "exit_code": done.exit_code, "timed_out": False})

    async def execute(self, code: str, timeout: float | None) -> Execution:
        done = await (await self._running()).process.code_run(code, timeout=timeout)
        is_error = done.exit_code != 0
        failed = {"name": "ProcessError", "value": f"exit code {done.exit_code}", "traceback": done.result}
        output = {"stdout": "" if is_error else done.result, "stderr": done.result if is_error else ""}
        return Execution({"results": [], **output, "timed_out": False, **({"exception": failed} if is_error else {})})

    async def read(self, path: str) -> str:
        return (await (await self._running()).fs.download_file(self._path(path))).decode()

    async def write(self, path: str, content: str | bytes) -> None:
        await (await self._running()).fs.upload_file(content, self._path(path))

    async def preview_url(self, port: int) -> str:
        link = await (await self._running()).create_signed_preview_url(port, PREVIEW_S)
        return str(link.raw["url"])

    async def stop(self) -> None:
        await self.sandbox.stop()

    async def delete(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.delete()

    async def close(self) -> None:
        await self._client.close()
