"""A session: a sandbox of its own for one conversation, with a workspace and tools."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any

from ..errors import NotFoundError, UnsupportedError
from ..sync.client import Atoll
from ..sync.sandbox import Sandbox
from .toolset import Tool, toolset
from .workspace import Workspace

DEFAULT_PORT = "8090"


def session_url(url: str | None) -> str | None:
    """The address of the server: as given, of `ATOLL_URL`, or of `SANDBOX_HOST` and `SANDBOX_PORT`."""
    host, port = os.environ.get("SANDBOX_HOST"), os.environ.get("SANDBOX_PORT")
    if url or os.environ.get("ATOLL_URL") or not (host or port):
        return url
    return f"http://{host or 'localhost'}:{port or DEFAULT_PORT}"


class SandboxSession:
    """One conversation and its sandbox. `create` makes one, as an asynchronous or an ordinary context:

        async with SandboxSession.create(session_id="chat-42") as session:
            tools = session.get_tools()

    The same `session_id` has the same sandbox. It is deleted at the end, unless `keep` is set: then it is paused, and the
    next session with this id goes on with it.
    """

    def __init__(self, session_id: str, client: Atoll, keep: bool, options: dict[str, Any]) -> None:
        self.session_id = session_id
        self._client = client
        self._keep = keep
        self._options = options
        self._workspace: Workspace | None = None

    @classmethod
    def create(
        cls,
        session_id: str,
        *,
        template: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        keep: bool = False,
        **options: Any,
    ) -> SandboxSession:
        """A session. Its sandbox is created when the context is entered; `options` are those of a create."""
        client = Atoll(session_url(url), api_key)
        if template is not None:
            options["template"] = template
        return cls(session_id, client, keep, {"thread": session_id, "on_exit": "destroy", **options})

    @property
    def workspace(self) -> Workspace:
        """The workspace; only inside the context."""
        if self._workspace is None:
            raise NotFoundError("the session is not open", code="sandbox_not_found", hint="use it as a context")
        return self._workspace

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox; only inside the context."""
        return self.workspace.sandbox

    def tools(self, names: list[str] | tuple[str, ...] | None = None) -> list[Tool]:
        """The tools without any framework."""
        return toolset(self.workspace, names)

    def get_tools(self, names: list[str] | tuple[str, ...] | None = None) -> list[Any]:
        """The tools for LangChain, all or those that are named. Needs the extra `langchain`."""
        try:
            from ..langchain import langchain_tools
        except ImportError as cause:
            hint = "pip install 'atoll-sandbox[langchain]', or use tools() without a framework"
            raise UnsupportedError("the package langchain-core is missing", code="missing_extra", hint=hint) from cause
        return langchain_tools(self.workspace, names)

    def open(self) -> SandboxSession:
        """Creates the sandbox, or finds the one that the session has."""
        sandbox = self._client.sandboxes.create(**self._options)
        self._workspace = Workspace(sandbox)
        self._workspace.prepare()
        return self

    def close(self) -> None:
        """Deletes the sandbox, or pauses it with `keep`."""
        workspace, self._workspace = self._workspace, None
        try:
            if workspace is not None and self._keep:
                workspace.sandbox.pause()
            elif workspace is not None:
                workspace.sandbox.delete()
        finally:
            self._client.close()

    def __enter__(self) -> SandboxSession:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> SandboxSession:
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
