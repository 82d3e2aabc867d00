# Made from ../aio/sandbox.py by scripts/generate.py; do not edit.

"""One sandbox: its life, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..generated.models import (
    Awake,
    Lineage,
    MemoryLocation,
    Phase,
    Sample,
    SandboxInfo,
    Snapshot,
)
from ..results import Dropped, LogLine, typed
from ..settings import segment
from .code import Code
from .commands import Commands
from .egress import EgressLog, as_time
from .files import Files
from .git import Git
from .previews import Previews
from .sessions import Sessions
from .terminals import Terminals
from .transport import LONG_S, Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..generated.models import CreateOptions, UpdateOptions


class Sandbox:
    """A sandbox. As a context manager it is deleted at the end.

    A paused, stopped or archived sandbox is woken by whatever needs it to run; `refresh`, `update`, `awake`, `metrics`,
    `lineage`, `logs` and `egress` never wake it.
    """

    def __init__(self, transport: Transport, info: SandboxInfo, *, owns_transport: bool = False) -> None:
        self._transport = transport
        self._owns_transport = owns_transport
        self.info = info
        self._path = path = f"/v1/sandboxes/{segment(info.id)}"
        self.commands = Commands(transport, path)
        self.files = Files(transport, path)
        self.code = Code(transport, path)
        self.git = Git(transport, path)
        self.terminals = Terminals(transport, path)
        self.sessions = Sessions(transport, path)
        self.previews = Previews(transport, path)
        self.egress = EgressLog(transport, path)

    @classmethod
    def create(
        cls,
        template: str | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Creates a sandbox with a client of its own, from the environment. See `Sandboxes.create`."""
        from .client import Atoll

        client = Atoll(url, api_key)
        try:
            sandbox = client.sandboxes.create(template, idempotency_key=idempotency_key, **options)
        except BaseException:
            client.close()
            raise
        sandbox._owns_transport = True
        return sandbox

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def name(self) -> str | None:
        """Its name, if it has one."""
        return self.info.name

    @property
    def phase(self) -> Phase:
        """Its phase when the server was last asked; `refresh` asks again."""
        return self.info.phase

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.phase}>"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.delete()
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connections of a sandbox that has its own client. The sandbox goes on."""
        if self._owns_transport:
            self._transport.close()

    def _verb(self, verb: str, body: Any = None, *, wait: bool = True) -> SandboxInfo:
        query = None if wait else {"wait": False}
        path = f"{self._path}/{verb}"
        self.info = SandboxInfo(self._transport.json("POST", path, query=query, body=body, timeout=LONG_S))
        return self.info

    def refresh(self) -> SandboxInfo:
        """Asks the server for the current record."""
        self.info = SandboxInfo(self._transport.json("GET", self._path))
        return self.info

    def pause(self, *, memory: MemoryLocation | None = None, wait: bool = True) -> SandboxInfo:
        """Pauses the sandbox; its processes and memory are kept, live or on disk."""
        return self._verb("pause", {"memory": memory} if memory else None, wait=wait)

    def resume(self, *, wait: bool = True) -> SandboxInfo:
        """Makes a paused, stopped or archived sandbox run again."""
        return self._verb("resume", wait=wait)

    def start(self, *, wait: bool = True) -> SandboxInfo:
        """Boots a stopped sandbox, resumes a paused one, or restores and boots an archived one."""
        return self._verb("start", wait=wait)

    def stop(self, *, wait: bool = True) -> SandboxInfo:
        """Ends the processes and keeps the files."""
        return self._verb("stop", wait=wait)

    def restart(self, *, wait: bool = True) -> SandboxInfo:
        """Stops and starts the sandbox."""
        return self._verb("restart", wait=wait)

    def archive(self, *, wait: bool = True) -> SandboxInfo:
        """Moves the files to object storage and frees the disk."""
        return self._verb("archive", wait=wait)

    def restore(self, *, wait: bool = True) -> SandboxInfo:
        """Restores the files of an archived sandbox and leaves it stopped."""
        return self._verb("restore", wait=wait)

    def rollback(self, snapshot: str) -> SandboxInfo:
        """Puts the sandbox back to one of its own snapshots. Later changes are lost."""
        return self._verb("rollback", {"snapshot": snapshot})

    def move(self, provider: str, *, template: str | None = None, wait: bool = True) -> SandboxInfo:
        """Moves the sandbox to another provider; it keeps its id. `last_move` lists what stayed behind."""
        return self._verb("move", {"provider": provider, **({"template": template} if template else {})}, wait=wait)

    def extend(self, seconds: int) -> SandboxInfo:
        """Extends the lifetime to at least this long from now. Never shortens it."""
        return self._verb("extend", {"seconds": seconds})

    def hold(self, seconds: int, reason: str | None = None) -> SandboxInfo:
        """Prevents idle timers from acting for some time, at most a day."""
        return self._verb("hold", {"for_s": seconds, **({"reason": reason} if reason else {})})

    def release(self) -> SandboxInfo:
        """Ends the hold."""
        self.info = SandboxInfo(self._transport.json("DELETE", f"{self._path}/hold"))
        return self.info

    def update(self, **options: Unpack[UpdateOptions]) -> SandboxInfo:
        """Changes labels, limits, network policy, timeout or timers, also while it runs. Absent options do not change."""
        answer = self._transport.json("PATCH", self._path, body=options, timeout=LONG_S)
        self.info = SandboxInfo(answer)
        return self.info

    def delete(self, *, wait: bool = True, snapshots: bool = False) -> SandboxInfo:
        """Deletes the sandbox with all its data, with `snapshots` also its snapshots. Can be repeated safely."""
        query = {**({} if wait else {"wait": False}), **({"snapshots": True} if snapshots else {})}
        self.info = SandboxInfo(self._transport.json("DELETE", self._path, query=query, timeout=LONG_S))
        return self.info

    def fork(
        self,
        count: int = 1,
        *,
        memory: bool = False,
        labels: dict[str, str] | None = None,
        timeout_s: int | None = None,
    ) -> list[Sandbox]:
        """Creates copies of the sandbox: its files, and its processes if `memory` is set and it is possible."""
        given = {"labels": labels, "timeout_s": timeout_s}
        body = {"count": count, "memory": memory, **{key: value for key, value in given.items() if value is not None}}
        answer = self._transport.json("POST", f"{self._path}/fork", body=body, timeout=LONG_S)
        return [Sandbox(self._transport, SandboxInfo(item)) for item in answer["sandboxes"]]

    def snapshot(
        self, name: str | None = None, *, memory: bool = False, tenant_wide: bool = False
    ) -> Snapshot:
        """Takes a snapshot of the files, with `memory` also of the processes. `create(snapshot=…)` starts from it.

        The name belongs to the sandbox (`SANDBOX:NAME`); with `tenant_wide` it is unique within the tenant.
        """
        body: dict[str, Any] = {"memory": memory, **({"name": name} if name else {})}
        if tenant_wide:
            body["tenant_wide"] = True
        return Snapshot(self._transport.json("POST", f"{self._path}/snapshots", body=body, timeout=LONG_S))

    def lineage(self) -> Lineage:
        """Returns what the sandbox was created from, and the sandboxes created from it."""
        return Lineage(self._transport.json("GET", f"{self._path}/lineage"))

    def awake(self) -> Awake:
        """Returns why the sandbox is awake, its last activity, and the next timer."""
        return Awake(self._transport.json("GET", f"{self._path}/awake"))

    def metrics(self) -> Sample:
        """Returns the current resource use."""
        return Sample(self._transport.json("GET", f"{self._path}/metrics"))

    def metrics_history(self, *, since: datetime | str | None = None, limit: int | None = None) -> list[Sample]:
        """Returns the past resource use, oldest first."""
        query = {"since": as_time(since), "limit": limit}
        answer = self._transport.json("GET", f"{self._path}/metrics/history", query=query)
        return [Sample(item) for item in answer["items"]]

    def logs(self, *, follow: bool = False) -> Iterator[LogLine | Dropped]:
        """Gives the output of the start command and of detached processes; with `follow` also what comes."""
        query = {"follow": True} if follow else None
        for event in self._transport.events("GET", f"{self._path}/logs", query=query):
            kind = Dropped if event.name == "dropped" else LogLine
            yield kind(typed(event.json(), event.name))
