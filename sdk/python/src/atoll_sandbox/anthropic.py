"""The tools of a sandbox in the format of Anthropic's API, and an agent loop. Needs the extra `anthropic`, or a client like it.

    from anthropic import Anthropic
    from atoll_sandbox import Sandbox
    from atoll_sandbox.anthropic import run_agent

    with Sandbox.create() as sandbox:
        print(run_agent(Anthropic(), "claude-sonnet-5", sandbox, "How many primes are below 1000?"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .agent.toolset import CODING_TOOLS, Tool, call
from .openai import sandbox_tools
from .sync.sandbox import Sandbox

__all__ = ["definitions", "run_agent", "run_tool_uses", "sandbox_tools"]


def definitions(tools: list[Tool]) -> list[Any]:
    """The tools as messages take them."""
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]


def run_tool_uses(tools: list[Tool], message: Any) -> list[Any]:
    """Makes the calls that a message of the model asks for; the blocks that answer them."""
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": call(tools, block.name, block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]


def run_agent(
    client: Any,
    model: str,
    sandbox: Sandbox,
    task: str,
    *,
    names: Sequence[str] | None = CODING_TOOLS,
    max_turns: int = 30,
    max_tokens: int = 8192,
) -> str:
    """Lets a model work on a task with a sandbox until it answers without a tool call."""
    tools = sandbox_tools(sandbox, names)
    messages: list[Any] = [{"role": "user", "content": task}]
    for _ in range(max_turns):
        message = client.messages.create(
            model=model, max_tokens=max_tokens, messages=messages, tools=definitions(tools)
        )
        if message.stop_reason != "tool_use":
            return "".join(block.text for block in message.content if block.type == "text")
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        messages.append({"role": "user", "content": run_tool_uses(tools, message)})
    return f"stopped after {max_turns} turns"
