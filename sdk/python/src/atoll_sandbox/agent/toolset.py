"""All tools of a session by name, with their JSON schemas: what every framework's tools are made from."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import AtollError, InvalidError, NotFoundError
from .code_tools import CodeTools
from .file_tools import FileTools
from .service_tools import ServiceTools
from .shell_tools import ShellTools
from .workspace import Workspace

TOOL_NAMES = (
    "file_read file_write file_edit file_delete file_list file_find file_search grep glob "
    "shell_exec shell_interactive shell_view shell_write shell_wait shell_kill "
    "python_exec python_execute javascript_execute pip_install "
    "git_clone git_commit git_push git_status http_request "
    "browser_open browser_info browser_screenshot browser_action "
    "mcp_list_servers mcp_list_tools mcp_execute "
    "env_get env_set process_list workspace_info workspace_health"
).split()

# A small set that covers what coding agents do; the whole list costs a model thousands of tokens.
CODING_TOOLS = ("shell_exec", "python_execute", "file_read", "file_write", "file_edit", "file_list", "grep", "glob")


class Tool(NamedTuple):
    """One tool."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., dict[str, Any]]


def toolset(workspace: Workspace, names: list[str] | tuple[str, ...] | None = None) -> list[Tool]:
    """The tools of a workspace, all or those that are named."""
    groups = (FileTools(workspace), ShellTools(workspace), CodeTools(workspace), ServiceTools(workspace))
    chosen: list[Tool] = []
    for name in TOOL_NAMES if names is None else names:
        group = next((group for group in groups if name in TOOL_NAMES and hasattr(group, name)), None)
        if group is None:
            hint = ", ".join(TOOL_NAMES)
            raise InvalidError(f"there is no tool {name!r}", code="invalid_argument", hint=hint, field="names")
        function = getattr(group, name)
        chosen.append(Tool(name, inspect.getdoc(function) or name, json_schema(function), function))
    return chosen


def call(tools: list[Tool], name: str, arguments: str | dict[str, Any]) -> str:
    """Calls a tool as a model asked for it. The answer is JSON; an error is an object with `error`, for the model to read."""
    try:
        tool = next((tool for tool in tools if tool.name == name), None)
        if tool is None:
            raise NotFoundError(f"there is no tool {name!r}", code="invalid_argument")
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        inspect.signature(tool.function).bind(**given)
        return json.dumps(tool.function(**given), ensure_ascii=False)
    except (AtollError, TypeError, ValueError) as error:
        return json.dumps({"error": str(error)}, ensure_ascii=False)


def json_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of the parameters of a function whose types are annotated."""
    hints = get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = schema_of(hints[name])
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {**schema_of(inner[0]), "description": inner[1]}
    if origin in (Union, types.UnionType):
        kinds = [schema_of(part) for part in inner if part is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": True}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}
