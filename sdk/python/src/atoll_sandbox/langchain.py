"""The tools of a session for LangChain. Needs the extra `langchain`.

    async with SandboxSession.create(session_id="chat-42") as session:
        agent = create_agent(model, session.get_tools())
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .agent.session import SandboxSession
from .agent.toolset import CODING_TOOLS, TOOL_NAMES, Tool, toolset
from .agent.workspace import Workspace, WorkspaceError
from .errors import AtollError
from .extras import missing_extra
from .sync.sandbox import Sandbox

try:
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
except ImportError as cause:
    raise missing_extra("langchain", cause) from cause

__all__ = [
    "CODING_TOOLS",
    "TOOL_NAMES",
    "SandboxSession",
    "WorkspaceError",
    "langchain_tools",
    "sandbox_tools",
]


def sandbox_tools(sandbox: Sandbox, names: list[str] | tuple[str, ...] | None = None) -> list[BaseTool]:
    """The tools for a sandbox that you made yourself."""
    workspace = Workspace(sandbox)
    workspace.prepare()
    return langchain_tools(workspace, names)


def langchain_tools(workspace: Workspace, names: list[str] | tuple[str, ...] | None = None) -> list[BaseTool]:
    """The tools of a workspace, for `invoke` and `ainvoke`."""
    return [langchain_tool(tool) for tool in toolset(workspace, names)]


def langchain_tool(tool: Tool) -> BaseTool:
    """One tool. An error is told to the model as text; it does not end the agent."""
    return StructuredTool.from_function(
        func=refusing(tool.function),
        name=tool.name,
        description=tool.description,
        handle_tool_error=True,
        parse_docstring=False,
    )


def refusing(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The function with its errors as LangChain knows them."""

    @functools.wraps(function)
    def called(**arguments: Any) -> dict[str, Any]:
        try:
            return function(**arguments)
        except (AtollError, ValueError) as error:
            raise ToolException(f"Error: {error}") from error

    return called
