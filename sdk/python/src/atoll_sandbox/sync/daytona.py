# Made from ../aio/daytona.py by scripts/generate.py; do not edit.

"""A client of a Daytona server, with the names of Daytona's guide. Atoll is such a server, below `/daytona/api`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..daytona_settings import LANGUAGE_LABEL, PASSING, CreateSandboxParams, DaytonaConfig, create_body, size_body
from ..errors import InternalError, InvalidError, RequestTimeoutError
from ..model import Model
from ..multipart import file_form
from ..settings import segment
from ..waiting import sleep
from .commands import GRACE_S
from .transport import LONG_S, Transport

# How often a state is asked for while it changes: fast at first, since most changes are quick.
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 1.0
FAILED = ("error", "build_failed", "destroyed")
MAX_RETRIES = 2


class ExecuteResponse(Model):
    """How a command or code ended. `result` has both streams in their order."""

    result: str
    exit_code: int

    _convert = {"exitCode": ("exit_code", int)}


class Process:
    """Commands and code of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def execute_command(
        self,
        command: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> ExecuteResponse:
        """Runs a command of the shell and waits for its end. Only a server of Atoll knows `user`; others ignore it."""
        body = {"command": command, "cwd": cwd, "envs": dict(env) if env else None, "timeout": timeout, "user": user}
        return self._run("/process/execute", body, timeout)

    def code_run(
        self, code: str, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> ExecuteResponse:
        """Runs code in the language of the sandbox. Nothing of it is kept for the next code."""
        language = self._sandbox.labels.get(LANGUAGE_LABEL, "python")
        body = {"code": code, "language": language, "envs": dict(env) if env else None, "timeout": timeout}
        return self._run("/process/code-run", body, timeout)

    def _run(self, path: str, body: dict[str, Any], timeout: float | None) -> ExecuteResponse:
        given = {name: value for name, value in body.items() if value is not None}
        silence = None if timeout is None else timeout + GRACE_S
        answer = self._sandbox.transport.request("POST", self._sandbox.toolbox(path), body=given, timeout=silence)
        return ExecuteResponse(answer.json())


class FileSystem:
    """Files of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def upload_file(self, file: str | bytes, remote_path: str) -> None:
        """Writes a file; missing directories are made."""
        content, kind = file_form(remote_path, file.encode() if isinstance(file, str) else file)
        url = self._sandbox.toolbox("/files/bulk-upload")
        self._sandbox.transport.json("POST", url, content=content, headers={"Content-Type": kind}, timeout=LONG_S)

    def download_file(self, remote_path: str) -> bytes:
        """Reads a file."""
        url, query = self._sandbox.toolbox("/files/download"), {"path": remote_path}
        return (self._sandbox.transport.request("GET", url, query=query, timeout=LONG_S)).content


class Git:
    """Repositories in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def clone(self, url: str, path: str, branch: str | None = None) -> None:
        """Clones a repository."""
        body = {"url": url, "path": path, **({"branch": branch} if branch else {})}
        self._sandbox.transport.json("POST", self._sandbox.toolbox("/git/clone"), body=body, timeout=LONG_S)


class Sandbox:
    """A sandbox at a Daytona server. `raw` is the last answer about it."""

    def __init__(self, transport: Transport, raw: dict[str, Any]) -> None:
        self.transport = transport
        self.raw = raw
        self.id = str(raw["id"])
        self._path = f"/sandbox/{segment(self.id)}"
        self.process = Process(self)
        self.fs = FileSystem(self)
        self.git = Git(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"

    @property
    def name(self) -> str:
        """Its name; that of an unnamed sandbox is its id."""
        return str(self.raw.get("name") or self.id)

    @property
    def state(self) -> str:
        """Its state when the server was last asked."""
        return str(self.raw.get("state") or "unknown")

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.raw.get("labels") or {})

    @property
    def cpu(self) -> int:
        """Its cores."""
        return int(self.raw["cpu"])

    @property
    def memory(self) -> int:
        """Its memory in GiB."""
        return int(self.raw["memory"])

    @property
    def disk(self) -> int:
        """Its disk in GiB."""
        return int(self.raw["disk"])

    def toolbox(self, path: str) -> str:
        """The address of a call of the toolbox, which the server may have at a host of its own."""
        return f"{str(self.raw['toolboxProxyUrl']).rstrip('/')}/{segment(self.id)}{path}"

    def refresh(self) -> Sandbox:
        """Asks the server for the current record."""
        self.raw = self.transport.json("GET", self._path)
        return self

    def start(self, timeout: float = LONG_S) -> None:
        """Starts a stopped or archived sandbox and waits until it runs."""
        self._act("start", timeout)
        self.wait_for("started", timeout)

    def stop(self, timeout: float = LONG_S) -> None:
        """Ends the processes, keeps the files, and waits for it."""
        self._act("stop", timeout)
        self.wait_for("stopped", timeout)

    def restart(self, timeout: float = LONG_S) -> None:
        """Stops the sandbox and starts it again. A stopped one is started."""
        self.refresh()
        if self.state == "started":
            self.stop(timeout)
        self.start(timeout)

    def archive(self) -> None:
        """Moves the files of a stopped sandbox to object storage. Does not wait."""
        self._act("archive", LONG_S)

    def resize(
        self,
        cpu: float | None = None,
        memory: float | None = None,
        disk: float | None = None,
        gpu: float | None = None,
        timeout: float = LONG_S,
    ) -> None:
        """Changes the limits, also while it runs."""
        body = size_body(cpu=cpu, memory=memory, disk=disk, gpu=gpu)
        if not body:
            raise InvalidError("there is nothing to resize", code="invalid_argument", hint="pass cpu, memory or disk")
        self.raw = self.transport.json("POST", f"{self._path}/resize", body=body, timeout=timeout)
        self._settled(timeout)

    def delete(self) -> None:
        """Deletes the sandbox with its files."""
        self.transport.json("DELETE", self._path, timeout=LONG_S)

    def get_preview_link(self, port: int) -> Model:
        """A link to a port: `url`, and `token`, which the header `x-daytona-preview-token` has to have."""
        return Model(self.transport.json("GET", f"{self._path}/ports/{port}/preview-url"))

    def create_signed_preview_url(self, port: int, expires_in_seconds: int = 3600) -> Model:
        """A link to a port whose `url` needs no token until it expires."""
        query = {"expiresInSeconds": expires_in_seconds}
        return Model(self.transport.json("GET", f"{self._path}/ports/{port}/signed-preview-url", query=query))

    def wait_for(self, wanted: str, timeout: float = LONG_S) -> None:
        """Waits until the sandbox has a state."""
        self._settled(timeout, wanted)
        if self.state != wanted:
            why = self.raw.get("errorReason") or f"it is {self.state}, not {wanted}"
            raise InternalError(f"sandbox {self.id}: {why}", code="sandbox_failed", hint="see its log at the server")

    def _act(self, verb: str, timeout: float) -> None:
        answer: dict[str, Any] | None = self.transport.json("POST", f"{self._path}/{verb}", timeout=timeout)
        # The answer is a sandbox; an older server answers without one.
        if answer and "state" in answer:
            self.raw = answer
        else:
            self.refresh()

    def _settled(self, timeout: float, wanted: str | None = None) -> None:
        """Waits while the state changes by itself: until it is the wanted one, a failure, or one that stays."""
        end, pause = time.monotonic() + timeout, FIRST_LOOK_S
        while self.state != wanted and self.state not in FAILED and (wanted is not None or self.state in PASSING):
            if time.monotonic() > end:
                hint = "pass a larger timeout; the server goes on with it"
                message = f"sandbox {self.id} is still {self.state} after {timeout:g} s"
                raise RequestTimeoutError(message, code="request_timeout", hint=hint)
            sleep(pause)
            pause = min(pause * 2, LAST_LOOK_S)
            self.refresh()


class Daytona:
    """A client of a Daytona server."""

    def __init__(self, config: DaytonaConfig | None = None, *, timeout: float = 60.0, ca: str | None = None) -> None:
        self._config = config or DaytonaConfig()
        trusted = ca or os.environ.get("ATOLL_CA")
        self._transport = Transport(self._config.address(), self._config.key(), timeout, MAX_RETRIES, trusted)

    @property
    def url(self) -> str:
        """The address of the API."""
        return self._transport.url

    def create(self, params: CreateSandboxParams | None = None, *, timeout: float = LONG_S) -> Sandbox:
        """Creates a sandbox and returns when it runs. One that does not start is removed."""
        body = create_body(params or CreateSandboxParams(), self._config.region())
        answer = self._transport.json("POST", "/sandbox", body=body, timeout=timeout)
        sandbox = Sandbox(self._transport, answer)
        try:
            sandbox.wait_for("started", timeout)
        except BaseException:
            sandbox.delete()
            raise
        return sandbox

    def get(self, sandbox_id_or_name: str) -> Sandbox:
        """Finds a sandbox by its id or name."""
        answer = self._transport.json("GET", f"/sandbox/{segment(sandbox_id_or_name)}")
        return Sandbox(self._transport, answer)

    def list(self, labels: Mapping[str, str] | None = None) -> Iterator[Sandbox]:
        """Gives the sandboxes, all or those with these labels."""
        query: dict[str, Any] = {"labels": json.dumps(dict(labels)) if labels else None}
        while True:
            page = self._transport.json("GET", "/sandbox", query=query)
            for item in page["items"]:
                yield Sandbox(self._transport, item)
            query["cursor"] = page.get("nextCursor")
            if not query["cursor"]:
                return

    def start(self, sandbox: Sandbox) -> None:
        """Starts a sandbox."""
        sandbox.start()

    def stop(self, sandbox: Sandbox) -> None:
        """Stops a sandbox."""
        sandbox.stop()

    def delete(self, sandbox: Sandbox) -> None:
        """Deletes a sandbox."""
        sandbox.delete()

    def close(self) -> None:
        """Closes the connections. Sandboxes go on."""
        self._transport.close()

    def __enter__(self) -> Daytona:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
