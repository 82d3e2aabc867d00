"""Tools for shells, which keep their directory and variables, and for the environment."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Union

from ..errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from .interactive import InteractiveProgram
from .shells import SessionShell, TerminalShell
from .workspace import Workspace, failed

Shell = Union[SessionShell, TerminalShell, InteractiveProgram]
ShellId = Annotated[str, "Name of the shell; the same name keeps its directory and variables"]

MAIN = "main"
DEFAULT_WAIT_S = 120.0
MAX_OUTPUT = 30_000
# How long the first output of a program in a terminal may take, and its answer to what was typed.
START_S, ANSWER_S = 5.0, 2.0
ENDED = "the shell had ended, by exit or otherwise: this is a new one, without the directory and variables of the last"


class ShellTools:
    """Tools for shells. Every answer is a JSON object."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._shells: dict[str, Shell] = {}

    def shell_exec(
        self,
        command: Annotated[str, "Command for the shell"],
        id: ShellId = MAIN,
        timeout: Annotated[float, "Seconds to wait; then the command goes on, see shell_wait"] = DEFAULT_WAIT_S,
    ) -> dict[str, Any]:
        """Run a command in a shell and wait for its end."""
        note = self._hand_over(id, command)
        answer = self._look(id, timeout)
        return answer if note is None else {**answer, "note": note}

    def shell_interactive(
        self, command: Annotated[str, "Program that reads input"], id: ShellId = "interactive"
    ) -> dict[str, Any]:
        """Start a program that reads input, such as a REPL, in a terminal. Use shell_write to type, shell_view to read."""
        before = self._idle(id)
        if before is not None:
            failed(before.end)
        workspace = self._workspace
        self._shells[id] = InteractiveProgram(workspace.sandbox, command, workspace.root, workspace.env)
        return self._look(id, START_S)

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
        shell = self._shell(id)
        shell.write(input + ("\n" if press_enter else ""))
        return self._look(id, ANSWER_S if isinstance(shell, InteractiveProgram) else 0.2)

    def shell_wait(
        self, id: ShellId = MAIN, seconds: Annotated[float, "Seconds to wait at most"] = DEFAULT_WAIT_S
    ) -> dict[str, Any]:
        """Wait for the end of the last command of a shell."""
        shell = self._shell(id)
        if isinstance(shell, InteractiveProgram):
            shell.wait(seconds, for_end=True)
            seconds = 0
        return self._look(id, seconds)

    def shell_kill(self, id: ShellId = MAIN) -> dict[str, Any]:
        """End a shell and everything that runs in it."""
        self._shell(id).end()
        del self._shells[id]
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
        # A shell gets it before its next command: one that runs now may be reading.
        self._workspace.env[name] = value
        return {"name": name, "value": value}

    def _shell(self, id: str) -> Shell:
        if id not in self._shells:
            raise NotFoundError(f"no command ran in the shell {id!r}", code="process_not_found")
        return self._shells[id]

    def _idle(self, id: str) -> Shell | None:
        """The shell with this id, if there is one; it must not be busy."""
        shell = self._shells.get(id)
        if shell is not None and shell.is_busy():
            hint = "wait with shell_wait, end it with shell_kill, or use another id"
            raise ConflictError(f"a command still runs in the shell {id!r}", code="shell_busy", hint=hint)
        return shell

    def _hand_over(self, id: str, command: str) -> str | None:
        """Gives a command to a shell, which is started if there is none. A note for the model if it had ended."""
        shell = self._idle(id)
        if isinstance(shell, InteractiveProgram):
            failed(shell.end)
            shell = None
        if shell is not None:
            try:
                self._start(shell, command)
                return None
            except NotFoundError:
                pass
        self._shells[id] = opened = self._open(id)
        self._start(opened, command)
        return None if shell is None else ENDED

    def _start(self, shell: SessionShell | TerminalShell, command: str) -> None:
        """Starts a command; before it the shell is given the variables that it does not have."""
        env = self._workspace.env
        missing = {name: value for name, value in env.items() if shell.given.get(name) != value}
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
        shell.start(command, f"export {exports}" if exports else "")
        shell.given = dict(env)

    def _open(self, id: str) -> SessionShell | TerminalShell:
        workspace = self._workspace
        try:
            return SessionShell(workspace.sandbox, id, workspace.root)
        except UnsupportedError:
            return TerminalShell(workspace.sandbox, workspace.root)

    def _look(self, id: str, wait_s: float) -> dict[str, Any]:
        """What the last command of a shell has written, after its end or after some time."""
        shell = self._shell(id)
        shell.wait(wait_s)
        state = shell.state()
        status = "completed" if state.is_over else "running"
        return {"id": id, "status": status, "exit_code": state.exit_code, **shown(state.output)}


def shown(output: str) -> dict[str, Any]:
    """The output for a model, cut in the middle if it is long."""
    cut = len(output) > MAX_OUTPUT
    if cut:
        half = MAX_OUTPUT // 2
        output = f"{output[:half]}\n[… {len(output) - MAX_OUTPUT} characters left out …]\n{output[-half:]}"
    return {"output": output, "truncated": cut}
