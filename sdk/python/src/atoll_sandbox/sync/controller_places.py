# Made from ../aio/controller_places.py by scripts/generate.py; do not edit.

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
from .client import Atoll
from .daytona import Daytona
from .daytona import Sandbox as DaytonaSandbox
from .sandbox import Sandbox
from .workspace import prepare_workspace

PREVIEW_S = 3600


class ServerPlace:
    """A sandbox at a provider of Atoll."""

    def __init__(self, client: Atoll) -> None:
        self._client = client
        self._sandbox: Sandbox | None = None
        self._root = WORKSPACE
        self._context: str | None = None

    @property
    def is_used(self) -> bool:
        """Whether there is a sandbox."""
        return self._sandbox is not None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox."""
        assert self._sandbox is not None, "a caller checks is_used"
        return self._sandbox

    def create(self, request: SandboxRequest) -> str:
        options: dict[str, Any] = {"timeout_s": request.timeout_s, "on_timeout": "delete"}
        if request.provider is not None:
            options["provider"] = request.provider
        if request.image is not None:
            options["image"] = request.image
        else:
            options["template"] = self._template(request.template)
        sandbox = self._create(options, request)
        try:
            self._root = prepare_workspace(sandbox)
            if request.git_url is not None:
                sandbox.git.clone(request.git_url, posixpath.join(self._root, request.repository()))
        except BaseException:
            sandbox.delete()
            raise
        self._sandbox, self._context = sandbox, None
        return sandbox.id

    def _create(self, options: dict[str, Any], request: SandboxRequest) -> Sandbox:
        try:
            return self._client.sandboxes.create(**options)
        except NotFoundError as error:
            # An account at a vendor has templates of its own, and not those of the earlier system: its default is meant.
            if error.code != "template_not_found" or request.template not in TEMPLATES or not request.is_elsewhere():
                raise
        options["template"] = DEFAULT_TEMPLATE
        return self._client.sandboxes.create(**options)

    def _template(self, name: str | None) -> str:
        """The template, or what it is called here if the server has none of that name."""
        if name is None:
            return DEFAULT_TEMPLATE
        if name in TEMPLATES:
            try:
                self._client.templates.get(name)
            except NotFoundError:
                return TEMPLATES[name]
        return name

    def _path(self, path: str | None) -> str:
        return posixpath.normpath(posixpath.join(self._root, path or ""))

    def run(self, command: str, timeout: float | None, cwd: str | None) -> CommandResult:
        return self.sandbox.commands.run(command, timeout_s=timeout, cwd=self._path(cwd))

    def execute(self, code: str, timeout: float | None) -> Execution:
        if self._context is None:
            self._context = (self.sandbox.code.contexts.create(cwd=self._root)).id
        return self.sandbox.code.run(code, context=self._context, timeout_s=timeout)

    def read(self, path: str) -> str:
        return self.sandbox.files.read_text(self._path(path))

    def write(self, path: str, content: str | bytes) -> None:
        self.sandbox.files.write(self._path(path), content)

    def preview_url(self, port: int) -> str:
        return (self.sandbox.previews.create(port, expires_s=PREVIEW_S)).url

    def stop(self) -> None:
        self.sandbox.stop()
        self._context = None

    def delete(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.delete()

    def close(self) -> None:
        self._client.close()


class DaytonaPlace:
    """A sandbox at a Daytona server, by Daytona's protocol."""

    def __init__(self, client: Daytona) -> None:
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

    def create(self, request: SandboxRequest) -> str:
        # The names of the earlier system are no snapshots there: its default is meant.
        snapshot = None if request.template in TEMPLATES else request.template
        params = CreateSandboxParams(
            language="python",
            snapshot=None if request.image else snapshot,
            image=request.image,
            ttl_minutes=math.ceil(request.timeout_s / 60),
        )
        sandbox = self._client.create(params)
        try:
            self._root = self._prepare(sandbox)
            if request.git_url is not None:
                sandbox.git.clone(request.git_url, posixpath.join(self._root, request.repository()))
        except BaseException:
            sandbox.delete()
            raise
        self._sandbox = sandbox
        return sandbox.id

    @staticmethod
    def _prepare(sandbox: DaytonaSandbox) -> str:
        """The workspace; below the working directory where the user of the sandbox may make nothing in `/`."""
        done = sandbox.process.execute_command(PREPARE)
        if done.exit_code != 0:
            # At Atoll root can make it; another server runs the script as before.
            owner = {"OWNER": owner_of(done.result)}
            done = sandbox.process.execute_command(PREPARE, env=owner, user="root")
        if done.exit_code == 0:
            return WORKSPACE
        done = sandbox.process.execute_command(f"mkdir -p {FALLBACK} && cd {FALLBACK} && pwd")
        return done.result.strip()

    def _running(self) -> DaytonaSandbox:
        """The sandbox; a stopped one is started first, as at Atoll."""
        if self.sandbox.state == "stopped":
            self.sandbox.start()
        return self.sandbox

    def _path(self, path: str | None) -> str:
        return posixpath.normpath(posixpath.join(self._root, path or ""))

    def run(self, command: str, timeout: float | None, cwd: str | None) -> CommandResult:
        sandbox = self._running()
        done = sandbox.process.execute_command(command, cwd=self._path(cwd), timeout=timeout)
        return CommandResult({"stdout": done.result, "stderr": "", "exit_code": done.exit_code, "timed_out": False})

    def execute(self, code: str, timeout: float | None) -> Execution:
        done = (self._running()).process.code_run(code, timeout=timeout)
        is_error = done.exit_code != 0
        failed = {"name": "ProcessError", "value": f"exit code {done.exit_code}", "traceback": done.result}
        output = {"stdout": "" if is_error else done.result, "stderr": done.result if is_error else ""}
        return Execution({"results": [], **output, "timed_out": False, **({"exception": failed} if is_error else {})})

    def read(self, path: str) -> str:
        return ((self._running()).fs.download_file(self._path(path))).decode()

    def write(self, path: str, content: str | bytes) -> None:
        (self._running()).fs.upload_file(content, self._path(path))

    def preview_url(self, port: int) -> str:
        link = (self._running()).create_signed_preview_url(port, PREVIEW_S)
        return str(link.raw["url"])

    def stop(self) -> None:
        self.sandbox.stop()

    def delete(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.delete()

    def close(self) -> None:
        self._client.close()
