# Made from ../aio/sessions.py by scripts/generate.py; do not edit.

"""Sessions: shells that keep their directory, variables and functions between commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import List

from ..generated.models import Session, SessionCommand, SessionDetails, SessionOutput, SessionResult
from ..results import CommandEvent, command_event
from ..settings import segment
from .commands import GRACE_S
from .transport import Transport


class Sessions:
    """Sessions of one sandbox. The commands of a session run one after the other."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/sessions"

    def create(self, name: str, *, cwd: str | None = None) -> Session:
        """Starts a session."""
        body = {"name": name, **({"cwd": cwd} if cwd else {})}
        return Session(self._transport.json("POST", self._path, body=body))

    def list(self) -> List[Session]:
        """Lists the sessions whose shell runs, oldest first."""
        return [Session(item) for item in (self._transport.json("GET", self._path))["items"]]

    def get(self, name: str) -> SessionDetails:
        """Returns a session with its commands, also after its shell has exited."""
        return SessionDetails(self._transport.json("GET", f"{self._path}/{segment(name)}"))

    def delete(self, name: str) -> None:
        """Ends a session with its processes, and deletes the output of its commands."""
        self._transport.json("DELETE", f"{self._path}/{segment(name)}")

    def run(self, name: str, command: str, *, timeout_s: float | None = None) -> SessionResult:
        """Runs a command and waits for its end. After `timeout_s` the wait ends with an error; the command goes on."""
        body = {"command": command, **({} if timeout_s is None else {"timeout_s": timeout_s})}
        silence = None if timeout_s is None else timeout_s + GRACE_S
        path = f"{self._path}/{segment(name)}/exec"
        return SessionResult((self._transport.request("POST", path, body=body, timeout=silence)).json())

    def start(self, name: str, command: str) -> str:
        """Hands a command to the shell and returns its id; `logs` and `command` tell how it goes on."""
        body = {"command": command, "detach": True}
        answer = self._transport.json("POST", f"{self._path}/{segment(name)}/exec", body=body)
        return str(answer["id"])

    def command(self, name: str, command: str) -> SessionCommand:
        """Returns a command of a session; its `exit_code` is `None` while it runs."""
        return SessionCommand(self._transport.json("GET", self._command(name, command)))

    def logs(self, name: str, command: str) -> SessionOutput:
        """Returns what a command has written so far."""
        return SessionOutput(self._transport.json("GET", f"{self._command(name, command)}/logs"))

    def follow(self, name: str, command: str) -> Iterator[CommandEvent]:
        """Follows the output of a command from its beginning."""
        path = f"{self._command(name, command)}/logs/stream"
        for event in self._transport.events("GET", path):
            yield command_event(event.name, event.json())

    def send_stdin(self, name: str, command: str, data: str | bytes) -> None:
        """Writes to the stdin of a command that was handed over with `start`."""
        content = data.encode() if isinstance(data, str) else data
        headers = {"Content-Type": "application/octet-stream"}
        path = f"{self._command(name, command)}/stdin"
        self._transport.json("POST", path, content=content, headers=headers)

    def _command(self, name: str, command: str) -> str:
        return f"{self._path}/{segment(name)}/commands/{segment(command)}"
