"""Results and stream events that have more than the fields of the API."""

from __future__ import annotations

import base64
from typing import Any, Literal, Union

from .errors import CommandFailedError
from .generated.models import CodeException, CodeOutput, CodeResult, ExecResult, NewPreview
from .model import Model

__all__ = [
    "CodeEvent",
    "CodeStarted",
    "CommandEvent",
    "CommandExit",
    "CommandResult",
    "CommandStarted",
    "Dropped",
    "Execution",
    "ExecutionEnded",
    "ExecutionFailed",
    "ExecutionResult",
    "FileChange",
    "LogLine",
    "Output",
    "Preview",
    "Progress",
]


def exact_bytes(raw: dict[str, Any], name: str) -> bytes:
    """The bytes of a field that is text, or base64 if it is not valid UTF-8."""
    encoded = raw.get(f"{name}_base64")
    return base64.b64decode(encoded) if encoded is not None else str(raw.get(name) or "").encode()


class CommandResult(ExecResult):
    """Result and output of a command."""

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    @property
    def output(self) -> str:
        """stdout, and stderr after it."""
        return self.stdout + self.stderr

    @property
    def stdout_bytes(self) -> bytes:
        """The exact bytes of stdout."""
        return exact_bytes(self.raw, "stdout")

    @property
    def stderr_bytes(self) -> bytes:
        """The exact bytes of stderr."""
        return exact_bytes(self.raw, "stderr")

    def check(self) -> CommandResult:
        """Raises `CommandFailedError` if the exit code is not 0."""
        if self.exit_code == 0:
            return self
        end = (self.stderr or self.stdout).strip()[-500:]
        why = "timed out" if self.timed_out else f"ended with code {self.exit_code}"
        message = f"the command {why}" + (f": {end}" if end else "")
        raise CommandFailedError(message, exit_code=self.exit_code, stdout=self.stdout, stderr=self.stderr)


class Execution(CodeResult):
    """Result and output of code."""

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        return next((result.text for result in self.results if result.is_main), None)

    @property
    def error(self) -> CodeException | None:
        """The exception of the code, if it raised one."""
        return self.exception


class Preview(NewPreview):
    """A port of a sandbox that can be reached from outside. The answer of `create` has the token in `url`."""

    path_url: str
    """The same below the server's own address, for clients that cannot resolve the host name of `url`."""


class CommandStarted(Model):
    """The process has started."""

    type: Literal["start"]
    pid: int


class Output(Model):
    """A part of the output. A character of several bytes can be split between two parts; `data` is exact."""

    type: Literal["stdout", "stderr", "terminal"]

    @property
    def data(self) -> bytes:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The bytes."""
        return exact_bytes(self.raw, "data")

    @property
    def text(self) -> str:
        """The bytes as text."""
        return self.data.decode("utf-8", "replace")


class LogLine(Output):
    """A part of the log of a sandbox."""

    at: str
    pid: int


class Dropped(Model):
    """The client read too slowly, and this much was left out."""

    type: Literal["dropped"]
    bytes: int


class CommandExit(Model):
    """The process has ended."""

    type: Literal["exit"]
    exit_code: int
    signal: int | None = None
    timed_out: bool = False


class CodeStarted(Model):
    """The code runs."""

    type: Literal["start"]
    context: str
    execution_count: int | None = None


class ExecutionResult(CodeOutput):
    """A value or a display of the code."""

    type: Literal["result"]


class ExecutionFailed(CodeException):
    """The code raised an exception."""

    type: Literal["exception"]


class ExecutionEnded(Model):
    """The code has ended."""

    type: Literal["end"]
    timed_out: bool = False


class FileChange(Model):
    """A change below a watched directory; after `overflow`, list the directory again."""

    type: Literal["create", "write", "remove", "rename", "chmod", "overflow"]
    name: str | None = None


class Progress(Model):
    """Progress of a pull, a push or a template that is made: a `step` with `message`, or the bytes of a `layer`."""

    type: Literal["step", "layer"]
    message: str | None = None
    digest: str | None = None
    done: int | None = None
    total: int | None = None
    state: str | None = None


CommandEvent = Union[CommandStarted, Output, Dropped, CommandExit]
CodeEvent = Union[CodeStarted, Output, ExecutionResult, ExecutionFailed, Dropped, ExecutionEnded]

_COMMAND: dict[str, type[Model]] = {"start": CommandStarted, "dropped": Dropped, "exit": CommandExit}
_CODE: dict[str, type[Model]] = {
    "start": CodeStarted,
    "result": ExecutionResult,
    "exception": ExecutionFailed,
    "dropped": Dropped,
    "end": ExecutionEnded,
}


def typed(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """The data of an event with its name as `type`."""
    return {"type": name, **raw}


def command_event(name: str, raw: dict[str, Any]) -> Any:
    """An event of a command."""
    return _COMMAND.get(name, Output)(typed(raw, name))


def code_event(name: str, raw: dict[str, Any]) -> Any:
    """An event of running code."""
    return _CODE.get(name, Output)(typed(raw, name))
