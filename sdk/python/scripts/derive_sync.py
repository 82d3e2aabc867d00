"""Makes the package `sync` from the package `aio`: the same code without `async` and `await`.

The rules are the table below and a few of the syntax; they work on tokens, so that text in strings and comments changes
only by the table.
"""

from __future__ import annotations

import io
import re
import tokenize

# Names of the asynchronous side and what they are on the other. Whole words only.
WORDS = {
    "AsyncAtoll": "Atoll",
    "AsyncDaytona": "Daytona",
    "AsyncSandboxController": "SandboxController",
    "AsyncSandbox": "Sandbox",
    "AsyncProcess": "Process",
    "AsyncTerminal": "Terminal",
    "AsyncClient": "Client",
    "AsyncTransport": "Transport",
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncSocket": "Socket",
    "AsyncContextManager": "ContextManager",
    "AsyncExitStack": "ExitStack",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "async_sleep": "sleep",
    "open_websocket_async": "open_websocket",
    "asynchronous": "blocking",
}
KEYWORDS = ("async", "await")
PATTERN = re.compile(r"\b(" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")\b")
HEAD = "# Made from ../aio/{name} by scripts/generate.py; do not edit.\n\n"


def derive(name: str, source: str) -> str:
    """The blocking form of a module."""
    lines = source.splitlines(keepends=True)
    cuts: list[tuple[int, int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in KEYWORDS:
            row, column = token.start
            # `async def`, `async for`, `async with`, `await x`: the word and the space behind it.
            end = column + len(token.string)
            while lines[row - 1][end : end + 1] == " ":
                end += 1
            cuts.append((row - 1, column, end))
    for row, start, end in reversed(cuts):
        lines[row] = lines[row][:start] + lines[row][end:]
    return HEAD.format(name=name) + PATTERN.sub(lambda found: WORDS[found.group(0)], "".join(lines))
