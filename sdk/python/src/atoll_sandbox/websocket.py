"""WebSockets by the package `websockets`, which is an extra."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .errors import AtollError, ConnectionFailedError, UnsupportedError

if TYPE_CHECKING:
    from ssl import SSLContext


class AsyncSocket(Protocol):
    """A WebSocket."""

    async def send(self, message: str | bytes) -> None: ...
    async def close(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[str | bytes]: ...


class Socket(Protocol):
    """A WebSocket."""

    def send(self, message: str | bytes) -> None: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[str | bytes]: ...


def missing() -> AtollError:
    """The error without the extra."""
    hint = "pip install 'atoll-sandbox[terminals]'"
    return UnsupportedError("terminals need the package websockets", code="missing_extra", hint=hint)


async def open_websocket_async(address: str, headers: Mapping[str, str], tls: SSLContext | None) -> AsyncSocket:
    """Opens a WebSocket."""
    try:
        from websockets.asyncio.client import connect
    except ImportError as cause:
        raise missing() from cause
    try:
        socket: Any = await connect(address, additional_headers=dict(headers), ssl=tls, max_size=None, proxy=None)
    except Exception as cause:
        raise refused(address, cause) from cause
    return socket


def open_websocket(address: str, headers: Mapping[str, str], tls: SSLContext | None) -> Socket:
    """Opens a WebSocket."""
    try:
        from websockets.sync.client import connect
    except ImportError as cause:
        raise missing() from cause
    try:
        # Some versions connect in the call, others when the context is entered, which the earlier ones take as well.
        socket: Any = connect(address, additional_headers=dict(headers), ssl=tls, max_size=None, proxy=None).__enter__()
    except Exception as cause:
        raise refused(address, cause) from cause
    return socket


def refused(address: str, cause: Exception) -> AtollError:
    """The error for a WebSocket that does not open."""
    return ConnectionFailedError(f"cannot connect to {address}: {cause}", code="connection_failed")
