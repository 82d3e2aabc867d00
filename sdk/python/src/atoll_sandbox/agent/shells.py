"""Shells that keep their directory and variables between commands: sessions of the server, or a shell in a terminal."""

from __future__ import annotations

import time
import uuid

from ..errors import NotFoundError
from ..sync.sandbox import Sandbox
from ..waiting import sleep
from .interactive import InteractiveProgram, ShellState

# How often a running command is looked at: fast at first, since most end at once.
FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.5
# A shell in a terminal reads the names of files and runs what is in them, so that no length of a line is a limit. It prints
# the name of the file before a command, and the name with the exit code after it.
LOOP = r"""
stty -echo 2>/dev/null
while read -r file; do
  printf '%s:begin\n' "$file"
  . "$file"
  printf '\n%s:%s\n' "$file" "$?"
  rm -f "$file"
done
"""


class SessionShell:
    """A session of the server."""

    def __init__(self, sandbox: Sandbox, id: str, cwd: str) -> None:
        self.given: dict[str, str] = {}
        self._sessions = sandbox.sessions
        self._name = f"agent-{id}"
        self._command: str | None = None
        if all(session.name != self._name for session in self._sessions.list()):
            self._sessions.create(self._name, cwd=cwd)

    def start(self, command: str, exports: str) -> None:
        """Gives it a command; `NotFoundError` if the shell has ended."""
        if exports:
            self._sessions.start(self._name, exports)
        self._command = self._sessions.start(self._name, command)

    def write(self, text: str) -> None:
        """Types into the command."""
        if self._command is not None:
            self._sessions.send_stdin(self._name, self._command, text)

    def wait(self, seconds: float) -> None:
        """Waits for the end of the command, at most so long."""
        end, pause = time.monotonic() + seconds, FIRST_LOOK_S
        while self.is_busy() and time.monotonic() < end:
            sleep(min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 2, LAST_LOOK_S)

    def is_busy(self) -> bool:
        """Whether the command runs."""
        return self._command is not None and self._sessions.command(self._name, self._command).exit_code is None

    def state(self) -> ShellState:
        """What the command has written, and how it ended."""
        if self._command is None:
            return ShellState(0, "", True)
        written = self._sessions.logs(self._name, self._command)
        return ShellState(written.exit_code, written.stdout + written.stderr, written.exit_code is not None)

    def end(self) -> None:
        """Ends the shell and everything that runs in it."""
        self._sessions.delete(self._name)


class TerminalShell:
    """A shell in a terminal, for providers that have no sessions."""

    def __init__(self, sandbox: Sandbox, cwd: str) -> None:
        self.given: dict[str, str] = {}
        self._files = sandbox.files
        self._program = InteractiveProgram(sandbox, LOOP, cwd, {})
        self._file = ""

    def start(self, command: str, exports: str) -> None:
        """Gives it a command; `NotFoundError` if the shell has ended."""
        self._program.wait(0)
        if self._program.is_over:
            raise NotFoundError("the shell has ended", code="process_not_found")
        self._file = f"/tmp/agent-{uuid.uuid4().hex}"
        self._files.write(self._file, f"{exports}\n{command}\n")
        self._program.write(self._file + "\n")

    def write(self, text: str) -> None:
        """Types into the command."""
        self._program.write(text)

    def wait(self, seconds: float) -> None:
        """Waits for the end of the command, at most so long."""
        end, pause = time.monotonic() + seconds, FIRST_LOOK_S
        while self.is_busy() and time.monotonic() < end:
            sleep(min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 2, LAST_LOOK_S)

    def is_busy(self) -> bool:
        """Whether the command runs."""
        self._program.wait(0)
        return not self.state().is_over

    def state(self) -> ShellState:
        """What the command has written, and how it ended."""
        begun = self._program.output().rpartition(f"{self._file}:begin\n")[2]
        output, ended, rest = begun.partition(f"\n{self._file}:")
        if ended and "\n" in rest:
            return ShellState(int(rest.partition("\n")[0]), output, True)
        return ShellState(self._program.exit_code, begun, self._program.is_over)

    def end(self) -> None:
        """Ends the shell and everything that runs in it."""
        self._program.end()
