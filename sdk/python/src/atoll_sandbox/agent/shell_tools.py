"""Tools for shells, which keep their directory and variables, and for the environment."""

from __future__ import annotations

import shlex
import time
from typing import Annotated, Any

from ..errors import ConflictError, InvalidError, NotFoundError
from ..generated.models import SessionOutput
from ..waiting import sleep
from .workspace import Workspace

ShellId = Annotated[str, "Name of the shell; the same name keeps its directory and variables"]

MAIN = "main"
DEFAULT_WAIT_S = 120.0
# How often a running command is looked at: fast at first, since most end at once.
FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.5
MAX_OUTPUT = 30_000


class ShellTools:
    """Tools for shells. Every answer is a JSON object."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._sessions = workspace.sandbox.sessions
        # The last command of every shell.
        self._last: dict[str, str] = {}

    def shell_exec(
        self,
        command: Annotated[str, "Command for the shell"],
        id: ShellId = MAIN,
        timeout: Annotated[float, "Seconds to wait; then the command goes on, see shell_wait"] = DEFAULT_WAIT_S,
    ) -> dict[str, Any]:
        """Run a command in a shell and wait for its end."""
        self._hand_over(id, command)
        return self._look(id, timeout)

    def shell_interactive(
        self, command: Annotated[str, "Program that reads input"], id: ShellId = "interactive"
    ) -> dict[str, Any]:
        """Start a program that reads input. Use shell_write to type, shell_view to read."""
        self._hand_over(id, command)
        return self._look(id, 0.2)

    def shell_view(self, id: ShellId = MAIN) -> dict[str, Any]:
        """Show what the last command of a shell has written."""
        return self._look(id, 0)

    def shell_write(
        self,
        input: Annotated[str, "Text to type"],
        id: ShellId = MAIN,
        press_enter: Annotated[bool, "End the text with a line break"] = True,
    ) -> dict[str, Any]:
        """Type into the program that runs in a shell."""
        self._sessions.send_stdin(self._name(id), self._command(id), input + ("\n" if press_enter else ""))
        return self._look(id, 0.2)

    def shell_wait(
        self, id: ShellId = MAIN, seconds: Annotated[float, "Seconds to wait at most"] = DEFAULT_WAIT_S
    ) -> dict[str, Any]:
        """Wait for the end of the last command of a shell."""
        return self._look(id, seconds)

    def shell_kill(self, id: ShellId = MAIN) -> dict[str, Any]:
        """End a shell and everything that runs in it."""
        self._sessions.delete(self._name(id))
        self._last.pop(id, None)
        return {"id": id, "status": "terminated"}

    def process_list(self) -> dict[str, Any]:
        """List the processes in the sandbox."""
        listed = self._workspace.run(
            "for d in /proc/[0-9]*; do echo \"${d#/proc/} $(tr '\\0' ' ' < $d/cmdline 2>/dev/null)\"; done"
        )
        rows = (line.partition(" ") for line in listed.stdout.splitlines())
        return {"processes": [{"pid": int(pid), "command": text.strip()} for pid, _, text in rows if text.strip()]}

    def env_get(self, name: Annotated[str | None, "Name; all variables without it"] = None) -> dict[str, Any]:
        """Show environment variables of the sandbox."""
        said = self._workspace.run(["env", "-0"]).stdout
        found = dict(item.split("=", 1) for item in said.split("\0") if "=" in item)
        return {"env": found} if name is None else {"name": name, "value": found.get(name)}

    def env_set(self, name: Annotated[str, "Name"], value: Annotated[str, "Value"]) -> dict[str, Any]:
        """Set an environment variable for everything that runs from now on."""
        if not name.isidentifier():
            raise InvalidError(f"{name!r} is not a name of a variable", code="invalid_argument", field="name")
        self._workspace.env[name] = value
        for shell in list(self._last):
            self._sessions.run(self._name(shell), f"export {name}={shlex.quote(value)}", timeout_s=10)
        return {"name": name, "value": value}

    @staticmethod
    def _name(id: str) -> str:
        return f"agent-{id}"

    def _command(self, id: str) -> str:
        if id not in self._last:
            raise NotFoundError(f"no command ran in the shell {id!r}", code="process_not_found")
        return self._last[id]

    def _hand_over(self, id: str, command: str) -> None:
        """Gives a command to a shell, which is started if it is new."""
        last = self._last.get(id)
        if last is None:
            self._open(id)
        elif self._sessions.command(self._name(id), last).exit_code is None:
            hint = "wait with shell_wait, end it with shell_kill, or use another id"
            raise ConflictError(f"a command still runs in the shell {id!r}", code="shell_busy", hint=hint)
        self._last[id] = self._sessions.start(self._name(id), command)

    def _open(self, id: str) -> None:
        if any(session.name == self._name(id) for session in self._sessions.list()):
            return
        self._sessions.create(self._name(id), cwd=self._workspace.root)
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in self._workspace.env.items())
        if exports:
            self._sessions.run(self._name(id), f"export {exports}", timeout_s=10)

    def _look(self, id: str, wait_s: float) -> dict[str, Any]:
        """What the last command of a shell has written, after its end or after some time."""
        name, command = self._name(id), self._command(id)
        end, pause = time.monotonic() + wait_s, FIRST_LOOK_S
        while self._sessions.command(name, command).exit_code is None and time.monotonic() < end:
            sleep(min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 2, LAST_LOOK_S)
        return shell_answer(id, self._sessions.logs(name, command))


def shell_answer(id: str, written: SessionOutput) -> dict[str, Any]:
    """The answer for a command."""
    output = written.stdout + written.stderr
    cut = len(output) > MAX_OUTPUT
    if cut:
        half = MAX_OUTPUT // 2
        output = f"{output[:half]}\n[… {len(output) - MAX_OUTPUT} characters left out …]\n{output[-half:]}"
    status = "running" if written.exit_code is None else "completed"
    return {"id": id, "status": status, "exit_code": written.exit_code, "output": output, "truncated": cut}
