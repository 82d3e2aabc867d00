"""Code that keeps what it defined between calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, List

from ..generated.models import CodeContext, CodeLanguage
from ..results import CodeEvent, Execution, code_event
from ..settings import segment
from .commands import GRACE_S
from .transport import AsyncTransport

# Making a context starts a kernel, which a busy machine does slowly.
CONTEXT_S = 120.0


class Contexts:
    """Processes in the sandbox that keep what code defined."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/contexts"

    async def create(self, *, language: CodeLanguage = "python", cwd: str | None = None) -> CodeContext:
        """Creates a context. Returns when code can run in it."""
        body = {"language": language, **({"cwd": cwd} if cwd else {})}
        return CodeContext(await self._transport.json("POST", self._path, body=body, timeout=CONTEXT_S))

    async def list(self) -> List[CodeContext]:
        """Lists the contexts, oldest first."""
        return [CodeContext(item) for item in (await self._transport.json("GET", self._path))["items"]]

    async def get(self, context: str) -> CodeContext:
        """Returns a context."""
        return CodeContext(await self._transport.json("GET", f"{self._path}/{segment(context)}"))

    async def delete(self, context: str) -> None:
        """Ends a context. What was defined in it is lost."""
        await self._transport.json("DELETE", f"{self._path}/{segment(context)}")

    async def restart(self, context: str) -> CodeContext:
        """Starts a context again with nothing defined in it. Its id stays."""
        path = f"{self._path}/{segment(context)}/restart"
        return CodeContext(await self._transport.json("POST", path, timeout=CONTEXT_S))

    async def interrupt(self, context: str) -> None:
        """Interrupts the code that runs in a context. What was defined in it is kept."""
        await self._transport.json("POST", f"{self._path}/{segment(context)}/interrupt")


class Code:
    """The code interpreter of one sandbox."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/code"
        self.contexts = Contexts(transport, self._path)

    async def run(
        self,
        code: str,
        *,
        language: CodeLanguage | None = None,
        context: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Execution:
        """Runs code and returns when it has ended. An exception of the code is in `Execution.error`.

        Without a `context` it runs in the default context of its `language`, which is Python if nothing is said.
        """
        body = code_body(code, language, context, env, timeout_s)
        silence = None if timeout_s is None else timeout_s + GRACE_S
        return Execution((await self._transport.request("POST", self._path, body=body, timeout=silence)).json())

    async def stream(
        self,
        code: str,
        *,
        language: CodeLanguage | None = None,
        context: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[CodeEvent]:
        """Runs code and gives its output and results as they come. Leaving the iteration interrupts the code."""
        body = code_body(code, language, context, env, timeout_s)
        async for event in self._transport.events("POST", f"{self._path}/stream", body=body):
            yield code_event(event.name, event.json())


def code_body(
    code: str,
    language: CodeLanguage | None,
    context: str | None,
    env: Mapping[str, str] | None,
    timeout_s: float | None,
) -> dict[str, Any]:
    """The body of a request; absent fields are left out."""
    given = {"language": language, "context": context, "env": dict(env) if env else None, "timeout_s": timeout_s}
    return {"code": code, **{name: value for name, value in given.items() if value is not None}}
