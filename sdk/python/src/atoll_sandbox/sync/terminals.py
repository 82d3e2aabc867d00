# Made from ../aio/terminals.py by scripts/generate.py; do not edit.

"""Terminals: shells that are found again by the name of their thread. A connection needs the extra `terminals`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, List

from ..errors import error_of_event
from ..generated.models import TerminalInfo
from ..settings import segment
from ..websocket import Socket, open_websocket
from .transport import Transport


class Terminal:
    """A connection to a terminal. Closing it leaves the shell running."""

    def __init__(self, info: TerminalInfo, socket: Socket) -> None:
        self.info = info
        self.id = info.id
        self.exit_code: int | None = None
        self._socket = socket

    def send(self, data: str | bytes) -> None:
        """Types something; end a command with a line break."""
        self._socket.send(data.encode() if isinstance(data, str) else data)

    def resize(self, cols: int, rows: int) -> None:
        """Changes the size of the window."""
        self._socket.send(json.dumps({"type": "resize", "cols": cols, "rows": rows}))

    def receive(self) -> Iterator[bytes]:
        """Gives the output until the shell ends; `exit_code` is set then."""
        for message in self._socket:
            if isinstance(message, bytes):
                yield message
                continue
            told: dict[str, Any] = json.loads(message)
            if told.get("type") == "error":
                raise error_of_event(told)
            if told.get("type") == "exit":
                self.exit_code = told.get("exit_code")
                return

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Terminals:
    """Terminals of one sandbox."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/terminals"

    def open(
        self,
        thread: str = "default",
        *,
        cols: int | None = None,
        rows: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        shell: Sequence[str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        """Opens a terminal and connects to it. The same thread gets the same terminal, with the end of its output."""
        given = {"cols": cols, "rows": rows, "cwd": cwd, "env": env, "shell": shell, "user": user}
        body = {"thread": thread, **{name: value for name, value in given.items() if value is not None}}
        info = TerminalInfo(self._transport.json("POST", self._path, body=body))
        return Terminal(info, self._connect(info.id))

    def _connect(self, terminal: str) -> Socket:
        address = self._transport.url.replace("http", "ws", 1) + f"{self._path}/{segment(terminal)}/ws"
        return open_websocket(address, self._transport.headers, self._transport.tls())

    def list(self) -> List[TerminalInfo]:
        """Lists the terminals."""
        return [TerminalInfo(item) for item in (self._transport.json("GET", self._path))["items"]]

    def delete(self, terminal: str) -> None:
        """Ends a terminal and its shell."""
        self._transport.json("DELETE", f"{self._path}/{segment(terminal)}")
