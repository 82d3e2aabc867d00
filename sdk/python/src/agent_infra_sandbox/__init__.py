"""Another name of `atoll_sandbox.agent`, for programs that were written for it: sessions, tools and their exceptions."""

from atoll_sandbox.agent.session import SandboxSession
from atoll_sandbox.agent.toolset import CODING_TOOLS, TOOL_NAMES
from atoll_sandbox.agent.workspace import WorkspaceError
from atoll_sandbox.errors import AtollError as SandboxError
from atoll_sandbox.errors import AuthenticationError as SandboxAuthenticationError
from atoll_sandbox.errors import ConnectionFailedError as SandboxConnectionError
from atoll_sandbox.errors import NotFoundError as SandboxNotFoundError
from atoll_sandbox.errors import RequestTimeoutError as SandboxTimeoutError
from atoll_sandbox.errors import UnsupportedError as SandboxUnsupportedError
from atoll_sandbox.factory import DaytonaSandbox, E2BSandbox, create_sandbox

__all__ = [
    "CODING_TOOLS",
    "TOOL_NAMES",
    "DaytonaSandbox",
    "E2BSandbox",
    "SandboxAuthenticationError",
    "SandboxConnectionError",
    "SandboxError",
    "SandboxNotFoundError",
    "SandboxSession",
    "SandboxTimeoutError",
    "SandboxUnsupportedError",
    "WorkspaceError",
    "create_sandbox",
]
