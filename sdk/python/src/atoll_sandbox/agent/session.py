"""A session: a sandbox of its own for one conversation, with a workspace and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any

from ..controller_settings import DEFAULT_TEMPLATE, session_url
from ..errors import NotFoundError, UnsupportedError
from ..sync.client import Atoll
from ..sync.sandbox import Sandbox
from .toolset import Tool, toolset
from .workspace import Workspace

# LIMIT: how long a session that nobody closes keeps its sandbox; entering it again counts anew.
LIFETIME_S = 24 * 3600


class SandboxSession:
    """One conversation and its sandbox. `create` makes one, as an asynchronous or an ordinary context:

        async with await SandboxSession.create(session_id="chat-42") as session:
            tools = session.get_tools()

    `await` opens it; without `await` the context does. The same `session_id` has the same sandbox. It is deleted at the
    end, unless `keep` is set: then it is paused, and the next session with this id goes on with it. If the program does
    not come to the end, the sandbox is deleted after a day (`timeout_s`); one that is kept belongs to its thread.
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
        """A session. Its sandbox is created when it is opened; `options` are those of a create."""
        client = Atoll(session_url(url), api_key)
        if not any(source in options for source in ("image", "snapshot", "archive")):
            options["template"] = template or DEFAULT_TEMPLATE
        if not keep:
            options = {"timeout_s": LIFETIME_S, "on_timeout": "delete", **options}
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
        if self._workspace is None:
            sandbox = self._client.sandboxes.create(**self._options)
            if not self._keep and sandbox.info.timeout_s is not None:
                sandbox.extend(self._options["timeout_s"])
            workspace = Workspace(sandbox)
            workspace.prepare()
            self._workspace = workspace
        return self

    def close(self) -> None:
        """Deletes the sandbox; with `keep` it is paused, or stopped where the provider cannot pause."""
        workspace, self._workspace = self._workspace, None
        try:
            if workspace is not None and self._keep:
                rest(workspace.sandbox)
            elif workspace is not None:
                workspace.sandbox.delete()
                # Its thread would stay with the server, which keeps a limited number.
                self._client.threads.end(self.session_id)
        finally:
            self._client.close()

    def __enter__(self) -> SandboxSession:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __await__(self) -> Generator[Any, None, SandboxSession]:
        return asyncio.to_thread(self.open).__await__()

    async def __aenter__(self) -> SandboxSession:
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def rest(sandbox: Sandbox) -> None:
    """Pauses a sandbox; where the provider cannot pause, stops it, which keeps the files."""
    try:
        sandbox.pause()
    except UnsupportedError:
        sandbox.stop()
