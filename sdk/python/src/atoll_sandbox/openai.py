"""The tools of a sandbox in the format of OpenAI's API, and an agent loop. Needs the extra `openai`, or a client like it.

    from openai import OpenAI
    from atoll_sandbox import Sandbox
    from atoll_sandbox.openai import run_agent

    with Sandbox.create() as sandbox:
        print(run_agent(OpenAI(), "gpt-5.5", sandbox, "How many primes are below 1000?"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .agent.toolset import CODING_TOOLS, Tool, call, toolset
from .agent.workspace import Workspace
from .sync.sandbox import Sandbox

__all__ = ["definitions", "run_agent", "run_tool_calls", "sandbox_tools"]


def sandbox_tools(sandbox: Sandbox, names: Sequence[str] | None = CODING_TOOLS) -> list[Tool]:
    """Tools of a sandbox: a set for coding if nothing is said, all of them with `None`."""
    workspace = Workspace(sandbox)
    workspace.prepare()
    return toolset(workspace, None if names is None else list(names))


def definitions(tools: list[Tool]) -> list[Any]:
    """The tools as chat completions take them."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]


def run_tool_calls(tools: list[Tool], message: Any) -> list[Any]:
    """Makes the calls that a message of the model asks for; the messages that answer them."""
    asked: list[Any] = message.tool_calls or []
    return [
        {"role": "tool", "tool_call_id": one.id, "content": call(tools, one.function.name, one.function.arguments)}
        for one in asked
    ]


def run_agent(
    client: Any, model: str, sandbox: Sandbox, task: str, *, names: Sequence[str] | None = CODING_TOOLS, max_turns: int = 30
) -> str:
    """Lets a model work on a task with a sandbox until it answers without a tool call."""
    tools = sandbox_tools(sandbox, names)
    messages: list[Any] = [{"role": "user", "content": task}]
    for _ in range(max_turns):
        answer = client.chat.completions.create(model=model, messages=messages, tools=definitions(tools))
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        messages.extend(run_tool_calls(tools, message))
    return f"stopped after {max_turns} turns"
