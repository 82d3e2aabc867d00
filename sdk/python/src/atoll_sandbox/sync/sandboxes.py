# Made from ../aio/sandboxes.py by scripts/generate.py; do not edit.

"""Sandboxes, threads and snapshots of a server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Mapping, TypeVar

from ..generated.models import Phase, SandboxInfo, Snapshot, Thread
from ..settings import segment
from .sandbox import Sandbox
from .transport import LONG_S, Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..generated.models import CreateOptions

T = TypeVar("T")


def pages(
    transport: Transport, path: str, query: Mapping[str, Any], convert: Callable[[dict[str, Any]], T]
) -> Iterator[T]:
    """Gives the elements of all pages; a page is asked for when it is needed."""
    asked = dict(query)
    while True:
        page = transport.json("GET", path, query=asked)
        for item in page["items"]:
            yield convert(item)
        asked["cursor"] = page.get("next_cursor")
        if asked["cursor"] is None:
            return


class Sandboxes:
    """The sandboxes of your tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        template: str | None = None,
        *,
        idempotency_key: str | None = None,
        wait: bool = True,
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Creates a sandbox and returns when it runs; a template that is made at its first use is waited for.

        Sent again with the same idempotency key, the request returns the first sandbox; a key is made for every call, so
        that a lost answer does not leave a second sandbox behind.
        """
        body = {**({"template": template} if template else {}), **options}
        queued_s = (options.get("queue_timeout_s") or LONG_S) if options.get("queue") else 0
        answer = self._transport.json(
            "POST",
            "/v1/sandboxes",
            query={"wait": wait},
            body=body,
            headers={"Idempotency-Key": idempotency_key or str(uuid.uuid4())},
            idempotent=True,
            timeout=LONG_S + queued_s,
        )
        return Sandbox(self._transport, SandboxInfo(answer))

    def get(self, id_or_name: str) -> Sandbox:
        """Finds a sandbox by its id, a unique prefix of it, or its name. Never wakes it."""
        path = f"/v1/sandboxes/{segment(id_or_name)}"
        return Sandbox(self._transport, SandboxInfo(self._transport.json("GET", path)))

    def list(
        self,
        *,
        phase: Phase | Sequence[Phase] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        template: str | None = None,
        tenant: str | None = None,
        all: bool = False,
        page_size: int | None = None,
    ) -> Iterator[Sandbox]:
        """Gives sandboxes, newest first, page by page. `all` includes records of deleted ones."""
        query: dict[str, Any] = {
            "phase": phase if phase is None or isinstance(phase, str) else ",".join(phase),
            "label": [f"{key}={value}" for key, value in (labels or {}).items()] or None,
            "name": name,
            "template": template,
            "tenant": tenant,
            "all": True if all else None,
            "limit": page_size,
        }
        for item in pages(self._transport, "/v1/sandboxes", query, SandboxInfo):
            yield Sandbox(self._transport, item)


class Threads:
    """Conversations, each bound to a provider and at most one sandbox."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, page_size: int | None = None) -> Iterator[Thread]:
        """Gives threads, newest first."""
        for thread in pages(self._transport, "/v1/threads", {"limit": page_size}, Thread):
            yield thread

    def get(self, thread: str) -> Thread:
        """Returns a thread: its provider and its sandbox."""
        return Thread(self._transport.json("GET", f"/v1/threads/{segment(thread)}"))

    def end(self, thread: str) -> None:
        """Ends a thread: each of its sandboxes is kept, paused or deleted according to its `on_exit`."""
        self._transport.json("DELETE", f"/v1/threads/{segment(thread)}", timeout=LONG_S)


class Snapshots:
    """Snapshots of sandboxes; `Sandbox.snapshot` takes one, `create(snapshot=…)` starts from one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, sandbox: str | None = None, name: str | None = None, page_size: int | None = None
    ) -> Iterator[Snapshot]:
        """Gives snapshots, newest first."""
        query = {"sandbox": sandbox, "name": name, "limit": page_size}
        for snapshot in pages(self._transport, "/v1/snapshots", query, Snapshot):
            yield snapshot

    def get(self, snapshot: str) -> Snapshot:
        """Returns a snapshot by its id or name."""
        return Snapshot(self._transport.json("GET", f"/v1/snapshots/{segment(snapshot)}"))

    def delete(self, snapshot: str) -> None:
        """Removes a snapshot. Sandboxes that were created from it do not change."""
        self._transport.json("DELETE", f"/v1/snapshots/{segment(snapshot)}", timeout=LONG_S)

    def verify(self, snapshot: str) -> Snapshot:
        """Reads a whole snapshot and checks that it is unchanged; raises `ConflictError` if it is not."""
        path = f"/v1/snapshots/{segment(snapshot)}/verify"
        return Snapshot(self._transport.json("POST", path, timeout=LONG_S))
