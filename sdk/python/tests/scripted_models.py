"""Models without a network: they say what the test wrote for them, and keep what they were told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

Call = tuple[str, dict[str, Any]]


class ScriptedChatModel(BaseChatModel):
    """A chat model of LangChain that makes these tool calls one after the other, and then says what `last` returns."""

    calls: list[Call]
    last: Callable[[str], str]
    _told: list[str] = PrivateAttr(default_factory=list)
    _tools: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def told(self) -> list[str]:
        """What the tools answered."""
        return self._told

    @property
    def tool_names(self) -> list[str]:
        """The tools that the model was given."""
        return self._tools

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self._tools = [getattr(tool, "name", None) or tool["name"] for tool in tools]
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        answers = [str(message.content) for message in messages if message.type == "tool"]
        self._told[:] = answers
        if len(answers) < len(self.calls):
            name, arguments = self.calls[len(answers)]
            call = {"name": name, "args": arguments, "id": f"call-{len(answers)}", "type": "tool_call"}
            message = AIMessage(content="", tool_calls=[call])
        else:
            message = AIMessage(content=self.last(answers[-1]))
        return ChatResult(generations=[ChatGeneration(message=message)])


class ScriptedOpenAI:
    """What `openai.OpenAI` has of the chat completions."""

    def __init__(self, calls: list[Call], last: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self._calls, self._last = calls, last
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **request: Any) -> Any:
        from openai.types.chat import ChatCompletion

        self.requests.append(json.loads(json.dumps(request)))
        number = len(self.requests) - 1
        message: dict[str, Any] = {"role": "assistant", "content": self._last}
        if number < len(self._calls):
            name, arguments = self._calls[number]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        raw = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return ChatCompletion.model_validate(raw)


class ScriptedAnthropic:
    """What `anthropic.Anthropic` has of the messages."""

    def __init__(self, calls: list[Call], last: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self._calls, self._last = calls, last
        self.messages = SimpleNamespace(create=self._create)

    def _create(self, **request: Any) -> Any:
        from anthropic.types import Message

        self.requests.append(json.loads(json.dumps(request, default=lambda block: block.model_dump())))
        number = len(self.requests) - 1
        content: list[dict[str, Any]] = [{"type": "text", "text": self._last}]
        reason = "end_turn"
        if number < len(self._calls):
            name, arguments = self._calls[number]
            content, reason = [{"type": "tool_use", "id": f"c{number}", "name": name, "input": arguments}], "tool_use"
        usage = {"input_tokens": 1, "output_tokens": 1}
        raw = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
        return Message.model_validate({**raw, "stop_reason": reason})
