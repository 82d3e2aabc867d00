"""A program in a terminal of the sandbox: what it writes is collected while it runs."""

from __future__ import annotations

import re
import threading
import time
import uuid
from typing import NamedTuple

from ..sync.sandbox import Sandbox
from ..sync.terminals import Terminal
from ..waiting import sleep

# Colours, movements of the cursor, titles of windows: nothing for a model.
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_=>]|[\x00\x07\x08]")
# The program starts when the connection is there: a terminal whose program has ended is forgotten, with its output.
WAIT_FOR_LINE = 'stty -echo 2>/dev/null; read -r line; stty echo 2>/dev/null; exec sh -c "$1"'
# LIMIT: the end of the output that is kept.
MAX_BYTES = 1 << 20
COLS, ROWS = 200, 50
# Output is complete when nothing more came for so long.
QUIET_S, LOOK_S = 0.2, 0.02


class ShellState(NamedTuple):
    """How far the last command of a shell is."""

    exit_code: int | None
    output: str
    is_over: bool


class InteractiveProgram:
    """A program that reads from a terminal."""

    def __init__(self, sandbox: Sandbox, command: str, cwd: str, env: dict[str, str]) -> None:
        self._terminals = sandbox.terminals
        self._thread = f"agent-{uuid.uuid4().hex}"
        self._written = bytearray()
        self._came_at = time.monotonic()
        self.is_over = False
        self.exit_code: int | None = None
        # `dumb` keeps line editors from drawing.
        shell, variables = ["sh", "-c", WAIT_FOR_LINE, "sh", command], {"TERM": "dumb", **env}
        self._follow(self._terminals.open(self._thread, cols=COLS, rows=ROWS, cwd=cwd, env=variables, shell=shell))
        self._terminal.send("\n")

    def write(self, text: str) -> None:
        """Types into the program."""
        self._connect()
        self._came_at = time.monotonic()
        self._terminal.send(text)

    def wait(self, seconds: float, *, for_end: bool = False) -> None:
        """Waits until the program is quiet, or for its end; at most so long."""
        self._connect()
        end = time.monotonic() + seconds
        before = len(self._written)
        while not self.is_over and (now := time.monotonic()) < end:
            said_something = len(self._written) != before and self.output() != ""
            if not for_end and said_something and now - self._came_at > QUIET_S:
                return
            sleep(LOOK_S)

    def state(self) -> ShellState:
        """What it has written, and how it ended."""
        return ShellState(self.exit_code, self.output(), self.is_over)

    def output(self) -> str:
        """What it has written so far, without escape sequences."""
        text = ESCAPES.sub("", self._written.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
        # The line that started it, where the terminal showed it.
        return text.removeprefix("\n")

    def is_busy(self) -> bool:
        """Whether the program runs."""
        self._connect()
        return not self.is_over

    def end(self) -> None:
        """Ends the program."""
        self._terminals.delete(self.id)

    def _follow(self, terminal: Terminal) -> None:
        self.id, self._terminal = terminal.id, terminal
        self._reader = threading.Thread(target=self._read, args=(terminal,), daemon=True)
        self._reader.start()

    def _read(self, terminal: Terminal) -> None:
        try:
            for piece in terminal.receive():
                self._written += piece
                del self._written[:-MAX_BYTES]
                self._came_at = time.monotonic()
            self.exit_code, self.is_over = terminal.exit_code, terminal.exit_code is not None
        except Exception:  # noqa: BLE001 - whatever broke the connection: the next call connects again.
            return

    def _connect(self) -> None:
        """Connects again after the connection broke. The terminal sends the end of its output once more."""
        if self.is_over or self._reader.is_alive():
            return
        if all(terminal.id != self.id for terminal in self._terminals.list()):
            self.is_over = True
            return
        self._written.clear()
        self._follow(self._terminals.open(self._thread))
