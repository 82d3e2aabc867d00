"""One sandbox: its life, and what is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from .transport import LONG_S, AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..generated.models import CreateOptions, UpdateOptions


class AsyncSandbox:
    """A sandbox. As a context manager it is deleted at the end.

    A paused, stopped or archived sandbox is woken by whatever needs it to run; `refresh`, `update`, `awake`, `metrics`,
    `lineage`, `logs` and `egress` never wake it.
    """

    def __init__(self, transport: AsyncTransport, info: SandboxInfo, *, owns_transport: bool = False) -> None:
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
    async def create(
        cls,
        template: str | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> AsyncSandbox:
        """Creates a sandbox with a client of its own, from the environment. See `Sandboxes.create`."""
        from .client import AsyncAtoll

        client = AsyncAtoll(url, api_key)
        try:
            sandbox = await client.sandboxes.create(template, idempotency_key=idempotency_key, **options)
        except BaseException:
            await client.close()
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

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.delete()
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the connections of a sandbox that has its own client. The sandbox goes on."""
        if self._owns_transport:
            await self._transport.close()

    async def _verb(self, verb: str, body: Any = None, *, wait: bool = True) -> SandboxInfo:
        query = None if wait else {"wait": False}
        path = f"{self._path}/{verb}"
        self.info = SandboxInfo(await self._transport.json("POST", path, query=query, body=body, timeout=LONG_S))
        return self.info

    async def refresh(self) -> SandboxInfo:
        """Asks the server for the current record."""
        self.info = SandboxInfo(await self._transport.json("GET", self._path))
        return self.info

    async def pause(self, *, memory: MemoryLocation | None = None, wait: bool = True) -> SandboxInfo:
        """Pauses the sandbox; its processes and memory are kept, live or on disk."""
        return await self._verb("pause", {"memory": memory} if memory else None, wait=wait)

    async def resume(self, *, wait: bool = True) -> SandboxInfo:
        """Makes a paused, stopped or archived sandbox run again."""
        return await self._verb("resume", wait=wait)

    async def start(self, *, wait: bool = True) -> SandboxInfo:
        """Boots a stopped sandbox, resumes a paused one, or restores and boots an archived one."""
        return await self._verb("start", wait=wait)

    async def stop(self, *, wait: bool = True) -> SandboxInfo:
        """Ends the processes and keeps the files."""
        return await self._verb("stop", wait=wait)

    async def restart(self, *, wait: bool = True) -> SandboxInfo:
        """Stops and starts the sandbox."""
        return await self._verb("restart", wait=wait)

    async def archive(self, *, wait: bool = True) -> SandboxInfo:
        """Moves the files to object storage and frees the disk."""
        return await self._verb("archive", wait=wait)

    async def restore(self, *, wait: bool = True) -> SandboxInfo:
        """Restores the files of an archived sandbox and leaves it stopped."""
        return await self._verb("restore", wait=wait)

    async def rollback(self, snapshot: str) -> SandboxInfo:
        """Puts the sandbox back to one of its own snapshots. Later changes are lost."""
        return await self._verb("rollback", {"snapshot": snapshot})

    async def move(self, provider: str, *, template: str | None = None, wait: bool = True) -> SandboxInfo:
        """Moves the sandbox to another provider; it keeps its id. `last_move` lists what stayed behind."""
        return await self._verb("move", {"provider": provider, **({"template": template} if template else {})}, wait=wait)

    async def extend(self, seconds: int) -> SandboxInfo:
        """Extends the lifetime to at least this long from now. Never shortens it."""
        return await self._verb("extend", {"seconds": seconds})

    async def hold(self, seconds: int, reason: str | None = None) -> SandboxInfo:
        """Prevents idle timers from acting for some time, at most a day."""
        return await self._verb("hold", {"for_s": seconds, **({"reason": reason} if reason else {})})

    async def release(self) -> SandboxInfo:
        """Ends the hold."""
        self.info = SandboxInfo(await self._transport.json("DELETE", f"{self._path}/hold"))
        return self.info

    async def update(self, **options: Unpack[UpdateOptions]) -> SandboxInfo:
        """Changes labels, limits, network policy, timeout or timers, also while it runs. Absent options do not change."""
        answer = await self._transport.json("PATCH", self._path, body=options, timeout=LONG_S)
        self.info = SandboxInfo(answer)
        return self.info

    async def delete(self, *, wait: bool = True, snapshots: bool = False) -> SandboxInfo:
        """Deletes the sandbox with all its data, with `snapshots` also its snapshots. Can be repeated safely."""
        query = {**({} if wait else {"wait": False}), **({"snapshots": True} if snapshots else {})}
        self.info = SandboxInfo(await self._transport.json("DELETE", self._path, query=query, timeout=LONG_S))
        return self.info

    async def fork(
        self,
        count: int = 1,
        *,
        memory: bool = False,
        labels: dict[str, str] | None = None,
        timeout_s: int | None = None,
    ) -> list[AsyncSandbox]:
        """Creates copies of the sandbox: its files, and its processes if `memory` is set and it is possible."""
        given = {"labels": labels, "timeout_s": timeout_s}
        body = {"count": count, "memory": memory, **{key: value for key, value in given.items() if value is not None}}
        answer = await self._transport.json("POST", f"{self._path}/fork", body=body, timeout=LONG_S)
        return [AsyncSandbox(self._transport, SandboxInfo(item)) for item in answer["sandboxes"]]

    async def snapshot(
        self, name: str | None = None, *, memory: bool = False, tenant_wide: bool = False
    ) -> Snapshot:
        """Takes a snapshot of the files, with `memory` also of the processes. `create(snapshot=…)` starts from it.

        The name belongs to the sandbox (`SANDBOX:NAME`); with `tenant_wide` it is unique within the tenant.
        """
        body: dict[str, Any] = {"memory": memory, **({"name": name} if name else {})}
        if tenant_wide:
            body["tenant_wide"] = True
        return Snapshot(await self._transport.json("POST", f"{self._path}/snapshots", body=body, timeout=LONG_S))

    async def lineage(self) -> Lineage:
        """Returns what the sandbox was created from, and the sandboxes created from it."""
        return Lineage(await self._transport.json("GET", f"{self._path}/lineage"))

    async def awake(self) -> Awake:
        """Returns why the sandbox is awake, its last activity, and the next timer."""
        return Awake(await self._transport.json("GET", f"{self._path}/awake"))

    async def metrics(self) -> Sample:
        """Returns the current resource use."""
        return Sample(await self._transport.json("GET", f"{self._path}/metrics"))

    async def metrics_history(self, *, since: datetime | str | None = None, limit: int | None = None) -> list[Sample]:
        """Returns the past resource use, oldest first."""
        query = {"since": as_time(since), "limit": limit}
        answer = await self._transport.json("GET", f"{self._path}/metrics/history", query=query)
        return [Sample(item) for item in answer["items"]]

    async def logs(self, *, follow: bool = False) -> AsyncIterator[LogLine | Dropped]:
        """Gives the output of the start command and of detached processes; with `follow` also what comes."""
        query = {"follow": True} if follow else None
        async for event in self._transport.events("GET", f"{self._path}/logs", query=query):
            kind = Dropped if event.name == "dropped" else LogLine
            yield kind(typed(event.json(), event.name))
