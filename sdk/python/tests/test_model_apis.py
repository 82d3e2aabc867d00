"""Tool definitions in the formats of OpenAI and Anthropic, checked with the vendors' own types, and agent loops."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import ToolParam
from atoll_sandbox import Sandbox, anthropic, openai
from atoll_sandbox.agent.toolset import CODING_TOOLS, TOOL_NAMES, call
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter
from scripted_models import ScriptedAnthropic, ScriptedOpenAI

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("file_write", {"file": "n.py", "content": "print(6 * 7)\n"}),
    ("no_such_tool", {}),
    ("shell_exec", {"command": "python3 n.py", "wrong": 1}),
    ("shell_exec", {"command": "python3 n.py"}),
]


def test_definitions_are_what_the_vendors_take(box: Sandbox) -> None:
    tools = openai.sandbox_tools(box, None)
    assert [tool.name for tool in tools] == TOOL_NAMES
    for_openai = TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(openai.definitions(tools))
    for_anthropic = TypeAdapter(list[ToolParam]).validate_python(anthropic.definitions(tools))
    assert len(for_openai) == len(for_anthropic) == 36
    grep = next(item for item in openai.definitions(tools) if item["function"]["name"] == "grep")
    assert grep["function"]["parameters"]["required"] == ["pattern"]
    assert grep["function"]["parameters"]["properties"]["literal"] == {
        "type": "boolean", "default": False, "description": "Take the pattern as plain text"
    }


def test_the_loop_of_openai_solves_a_task(box: Sandbox) -> None:
    model = ScriptedOpenAI(CALLS, "It is 42.")
    assert openai.run_agent(model, "m", box, "What is 6 * 7?") == "It is 42."
    told = [message for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    check_answers([message["content"] for message in told])
    assert [tool["function"]["name"] for tool in model.requests[0]["tools"]] == list(CODING_TOOLS)


def test_the_loop_of_anthropic_solves_a_task(box: Sandbox) -> None:
    model = ScriptedAnthropic(CALLS, "It is 42.")
    assert anthropic.run_agent(model, "m", box, "What is 6 * 7?") == "It is 42."
    blocks = [block for message in model.requests[-1]["messages"] if message["role"] == "user" for block in message["content"]]
    check_answers([block["content"] for block in blocks if isinstance(block, dict)])


def check_answers(answers: list[str]) -> None:
    written, unknown, wrong, ran = (json.loads(answer) for answer in answers)
    assert written == {"file": "n.py", "bytes": 13}
    assert "no_such_tool" in unknown["error"] and "wrong" in wrong["error"]
    assert (ran["output"], ran["exit_code"]) == ("42\n", 0)


def test_a_loop_that_never_ends_is_stopped(box: Sandbox) -> None:
    model = ScriptedOpenAI([("file_list", {})] * 5, "")
    assert openai.run_agent(model, "m", box, "go", max_turns=3) == "stopped after 3 turns"


def test_arguments_that_are_no_json_are_told_to_the_model(box: Sandbox) -> None:
    assert "error" in json.loads(call(openai.sandbox_tools(box), "file_read", "{not json"))
