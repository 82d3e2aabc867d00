"""Client of Atoll: isolated Linux sandboxes for AI agents, on your own server.

    from atoll_sandbox import Atoll

    with Atoll().sandboxes.create() as sandbox:
        print(sandbox.commands.run("echo hello").stdout)

`AsyncAtoll` has the same members; every method is awaited.
"""

from .aio.client import AsyncAtoll
from .aio.commands import AsyncProcess
from .aio.sandbox import AsyncSandbox
from .aio.terminals import AsyncTerminal
from .errors import (
    AtollError,
    AuthenticationError,
    CommandFailedError,
    ConflictError,
    ConnectionFailedError,
    ExhaustedError,
    ForbiddenError,
    InternalError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedError,
)
from .results import (
    CodeEvent,
    CodeStarted,
    CommandEvent,
    CommandExit,
    CommandResult,
    CommandStarted,
    Dropped,
    Execution,
    ExecutionEnded,
    ExecutionFailed,
    ExecutionResult,
    FileChange,
    LogLine,
    Output,
    Preview,
    Progress,
)
from .sync.client import Atoll
from .sync.commands import Process
from .sync.sandbox import Sandbox
from .sync.terminals import Terminal
from .version import VERSION as __version__

__all__ = [
    "AsyncAtoll",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTerminal",
    "Atoll",
    "AtollError",
    "AuthenticationError",
    "CodeEvent",
    "CodeStarted",
    "CommandEvent",
    "CommandExit",
    "CommandFailedError",
    "CommandResult",
    "CommandStarted",
    "ConflictError",
    "ConnectionFailedError",
    "Dropped",
    "Execution",
    "ExecutionEnded",
    "ExecutionFailed",
    "ExecutionResult",
    "ExhaustedError",
    "FileChange",
    "ForbiddenError",
    "InternalError",
    "InvalidError",
    "LogLine",
    "NotFoundError",
    "Output",
    "Preview",
    "Process",
    "Progress",
    "RequestTimeoutError",
    "Sandbox",
    "Terminal",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
]
