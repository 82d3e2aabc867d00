"""The workspace of a session: where its files are, and what its programs have in their environment."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeVar

from ..errors import AtollError, InvalidError
from ..results import CommandResult
from ..sync.sandbox import Sandbox
from ..sync.workspace import prepare_workspace
from ..workspace_script import WORKSPACE

T = TypeVar("T")


class WorkspaceError(InvalidError):
    """A relative path leads out of the workspace."""


class Workspace:
    """One folder of one sandbox. Relative paths are below it and cannot leave it; absolute ones are of the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.root = WORKSPACE
        self.env: dict[str, str] = {}

    def prepare(self) -> None:
        """Makes the folder, and what else is missing."""
        self.root = prepare_workspace(self.sandbox)

    def path(self, path: str | None) -> str:
        """The absolute path. `..` is resolved in the text; links inside are the sandbox's own matter."""
        if path is None or path == "":
            return self.root
        if path.startswith("/"):
            return posixpath.normpath(path)
        whole = posixpath.normpath(posixpath.join(self.root, path))
        if whole != self.root and not whole.startswith(self.root + "/"):
            hint = f"give a path below {self.root}, or an absolute one"
            raise WorkspaceError(f"{path!r} leads out of the workspace", code="invalid_argument", hint=hint, field="path")
        return whole

    def run(
        self, command: str | list[str], *, timeout_s: float | None = None, stdin: str | None = None, cwd: str | None = None
    ) -> CommandResult:
        """Runs a command in the workspace."""
        return self.sandbox.commands.run(
            command, cwd=self.path(cwd), env=self.env, timeout_s=timeout_s, stdin=stdin
        )

    def program(self, *names: str) -> str | None:
        """The first of these programs that the sandbox has."""
        found = self.sandbox.commands.run("command -v " + " ".join(names) + " | head -n 1", env=self.env).stdout.strip()
        return found or None


def failed(call: Callable[[], T]) -> T | AtollError:
    """The result of a call, or its error as a value."""
    try:
        return call()
    except AtollError as error:
        return error
