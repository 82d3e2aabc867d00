"""Retries, over a real socket: a server that answers what the test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from atoll_sandbox import Atoll, ConnectionFailedError, InternalError, NotFoundError, UnavailableError
from atoll_sandbox import retries

Answer = tuple[int, "dict[str, Any] | str", dict[str, str]]

BUSY: Answer = (503, {"code": "no_capacity", "message": "full", "request_id": "r9"}, {"Retry-After": "0"})
GONE: Answer = (404, {"code": "sandbox_not_found", "message": "none"}, {})
BROKEN: Answer = (0, {}, {})
BOX = {"id": "b1", "phase": "running"}
MADE: Answer = (201, BOX, {})
FINE: Answer = (200, BOX, {})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


@contextmanager
def scripted(*answers: Answer) -> Generator[tuple[Atoll, list[BaseHTTPRequestHandler]], None, None]:
    """A client of a server that gives these answers in order; the requests that it got."""
    left, seen = list(answers), list[BaseHTTPRequestHandler]()

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(self)
            status, body, headers = left.pop(0)
            self.close_connection = True
            if status == 0:
                return
            payload = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response_only(status)
            for name, value in {**headers, "Content-Length": str(len(payload))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload)

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    try:
        with Atoll(f"http://127.0.0.1:{listener.server_port}", "key") as client:
            yield client, seen
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
    assert not left, "an answer was not asked for"


def test_a_create_is_sent_again_with_the_same_key() -> None:
    with scripted(BUSY, BROKEN, MADE) as (client, seen):
        assert client.sandboxes.create().id == "b1"
    keys = {request.headers["idempotency-key"] for request in seen}
    assert len(seen) == 3 and len(keys) == 1 and len(keys.pop()) == 36
    assert seen[0].headers["authorization"] == "Bearer key"


def test_two_creates_have_two_keys() -> None:
    with scripted(MADE, MADE) as (client, seen):
        client.sandboxes.create()
        client.sandboxes.create()
    assert len({request.headers["idempotency-key"] for request in seen}) == 2


def test_reads_are_sent_again_and_the_last_error_is_raised() -> None:
    with scripted(BUSY, BUSY, BUSY) as (client, _), pytest.raises(UnavailableError) as caught:
        client.sandboxes.get("b1")
    assert (caught.value.code, caught.value.request_id, caught.value.status) == ("no_capacity", "r9", 503)


def test_a_command_is_never_sent_twice() -> None:
    for answer, kind in ((BUSY, UnavailableError), (BROKEN, ConnectionFailedError)):
        with scripted(FINE, answer) as (client, seen), pytest.raises(kind):
            client.sandboxes.get("b1").commands.run("echo")
        assert [request.command for request in seen] == ["GET", "POST"]


def test_a_repeated_delete_that_finds_nothing_has_worked() -> None:
    with scripted(BROKEN, GONE) as (client, _):
        client.volumes.delete("v")
    with scripted(GONE) as (client, _), pytest.raises(NotFoundError):
        client.volumes.delete("v")


def test_a_long_wait_that_the_server_asks_for_is_an_error_at_once() -> None:
    late = (503, {"code": "no_capacity", "message": "full"}, {"Retry-After": "600"})
    with scripted(late) as (client, _), pytest.raises(UnavailableError):
        client.sandboxes.get("b1")


def test_no_server_is_an_error_that_says_so() -> None:
    with Atoll("http://127.0.0.1:9", "key", max_retries=0) as client, pytest.raises(ConnectionFailedError) as caught:
        client.version()
    assert "atoll serve" in str(caught.value) and not caught.value.sent


def test_something_else_at_the_address_is_an_error() -> None:
    with scripted((200, "<html>", {})) as (client, _), pytest.raises(InternalError, match="not JSON"):
        client.version()
