# Made from ../aio/commands.py by scripts/generate.py; do not edit.

"""Commands of a sandbox: run one and wait, follow its output, or keep it running."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, List

from ..errors import InternalError
from ..generated.models import ProcessInfo
from ..results import CommandEvent, CommandExit, CommandResult, Output, command_event
from ..server_events import ServerEvent
from .transport import Transport, parse_events

if TYPE_CHECKING:
    import httpx

# How long after its own deadline the answer of a command may take.
GRACE_S = 30.0


def command_body(
    command: str | Sequence[str],
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    timeout_s: float | None,
    stdin: str | bytes | None,
) -> dict[str, Any]:
    """The body of a request; absent fields are left out."""
    body: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": list(command)}
    given = {"cwd": cwd, "env": dict(env) if env else None, "user": user, "timeout_s": timeout_s}
    body.update({name: value for name, value in given.items() if value is not None})
    if isinstance(stdin, bytes):
        body["stdin_base64"] = base64.b64encode(stdin).decode()
    elif stdin is not None:
        body["stdin"] = stdin
    return body


class Process:
    """A process in a sandbox. Its output is read by `output()` or `wait()`; what is not read in time is dropped by the server."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        pid: int,
        response: httpx.Response | None = None,
        events: Iterator[ServerEvent] | None = None,
    ) -> None:
        self.pid = pid
        self._transport = transport
        self._path = f"{path}/processes/{pid}"
        self._response = response
        self._events = events
        self._exit: CommandExit | None = None
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []

    @property
    def exit_code(self) -> int | None:
        """The exit code; `None` until `output()` or `wait()` has seen the end."""
        return None if self._exit is None else self._exit.exit_code

    def output(self) -> Iterator[CommandEvent]:
        """Follows the output to the end. The last event is the exit."""
        if self._events is None:
            self._response = self._transport.open("GET", f"{self._path}/attach", query={"tail": True})
            self._events = parse_events(self._response)
        for event in self._events:
            typed: CommandEvent = command_event(event.name, event.json())
            if isinstance(typed, Output):
                (self._stderr if typed.type == "stderr" else self._stdout).append(typed.data)
            elif isinstance(typed, CommandExit):
                self._exit = typed
            yield typed
        self.close()

    def wait(self) -> CommandResult:
        """Waits for the end and returns all output that this object has read."""
        if self._exit is None:
            for _ in self.output():
                pass
        end = self._exit.raw if self._exit is not None else {"exit_code": -1}
        stdout, stderr = b"".join(self._stdout), b"".join(self._stderr)
        return CommandResult(
            {
                "pid": self.pid,
                "stdout": stdout.decode("utf-8", "replace"),
                "stderr": stderr.decode("utf-8", "replace"),
                "stdout_base64": base64.b64encode(stdout).decode(),
                "stderr_base64": base64.b64encode(stderr).decode(),
                "exit_code": end["exit_code"],
                "signal": end.get("signal"),
                "timed_out": bool(end.get("timed_out")),
                "truncated": False,
                "duration_ms": 0,
            }
        )

    def kill(self, signal: str | int = "KILL") -> None:
        """Sends a signal: a name such as `TERM`, or a number."""
        self._transport.json("POST", f"{self._path}/signal", body={"signal": signal})

    def send_stdin(self, data: str | bytes) -> None:
        """Writes to its stdin."""
        content = data.encode() if isinstance(data, str) else data
        headers = {"Content-Type": "application/octet-stream"}
        self._transport.json("POST", f"{self._path}/stdin", content=content, headers=headers)

    def close_stdin(self) -> None:
        """Closes its stdin, which many programs take as the end."""
        self._transport.json("DELETE", f"{self._path}/stdin", idempotent=False)

    def close(self) -> None:
        """Stops following the output. The process goes on."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Commands:
    """Commands of one sandbox. A command is a line for the shell (`str`), or a program and its arguments (a list)."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = path

    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: str | bytes | None = None,
    ) -> CommandResult:
        """Runs a command and returns when it has ended. A code other than 0 is no error: see `CommandResult.check`."""
        body = command_body(command, cwd, env, user, timeout_s, stdin)
        silence = None if timeout_s is None else timeout_s + GRACE_S
        answer = self._transport.request("POST", f"{self._path}/exec", body=body, timeout=silence)
        return CommandResult(answer.json())

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: str | bytes | None = None,
    ) -> Iterator[CommandEvent]:
        """Runs a command and gives its output as it comes. Leaving the iteration does not end the command."""
        body = command_body(command, cwd, env, user, timeout_s, stdin)
        for event in self._transport.events("POST", f"{self._path}/exec/stream", body=body):
            yield command_event(event.name, event.json())

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: str | bytes | None = None,
        open_stdin: bool = False,
        tag: str | None = None,
        detach: bool = False,
    ) -> Process:
        """Starts a command and returns at once.

        With `detach` no connection is kept and the output goes to the logs of the sandbox; use it for servers.
        """
        body = command_body(command, cwd, env, user, timeout_s, stdin)
        body.update({"open_stdin": True} if open_stdin else {}, **({"tag": tag} if tag else {}))
        if detach:
            answer = self._transport.json("POST", f"{self._path}/exec", body={**body, "detach": True})
            return Process(self._transport, self._path, answer["pid"])
        response = self._transport.open("POST", f"{self._path}/exec/stream", body=body)
        events = parse_events(response)
        for event in events:
            return Process(self._transport, self._path, event.json()["pid"], response, events)
        raise InternalError("the stream of the command ended before it began")

    def list(self) -> List[ProcessInfo]:
        """Lists the running processes that were started through the API."""
        answer = self._transport.json("GET", f"{self._path}/processes")
        return [ProcessInfo(item) for item in answer["items"]]

    def connect(self, pid: int) -> Process:
        """A process that already runs; `output()` begins with its stored output."""
        return Process(self._transport, self._path, pid)
