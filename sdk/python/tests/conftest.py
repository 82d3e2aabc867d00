"""A real server for the tests: the one of `ATOLL_URL` and `ATOLL_API_KEY`, or one of our own from the binary `ATOLL_BIN`.

Tests of the code interpreter and of charts use the template `ATOLL_CODE_TEMPLATE` (default: the server's default).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from atoll_sandbox import AsyncAtoll, AsyncSandbox, Atoll, Sandbox

START_S = 60.0


@dataclass(frozen=True)
class Server:
    """Where the server is."""

    url: str
    api_key: str


def started(binary: str, data: Path) -> Iterator[Server]:
    """Starts a server on a free port and ends it with all its sandboxes."""
    log = data.with_suffix(".log")
    options = ["--data", str(data), "--listen", "127.0.0.1:0", "--tls-port", "0", "--make-templates", "never"]
    options += ["--socket", "off"]
    with log.open("wb") as written:
        process = subprocess.Popen([binary, "serve", *options], stdout=written, stderr=written)
    try:
        end = time.monotonic() + START_S
        while (found := re.search(r'"ready","url":"([^"]+)"', log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Server(found.group(1), (data / "admin.key").read_text().strip())
    finally:
        subprocess.run([binary, "--data", str(data), "server", "uninstall", "--force"], check=False, capture_output=True)
        process.terminate()
        process.wait(timeout=START_S)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of all tests."""
    url, key, binary = (os.environ.get(name) for name in ("ATOLL_URL", "ATOLL_API_KEY", "ATOLL_BIN"))
    if url and key:
        yield Server(url, key)
    elif binary:
        with tempfile.TemporaryDirectory(prefix="atoll-sdk-", dir="/var/tmp") as folder:
            yield from started(binary, Path(folder) / "data")
    else:
        pytest.fail("set ATOLL_URL and ATOLL_API_KEY, or ATOLL_BIN (as root)")


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Atoll]:
    """A client for the whole run."""
    with Atoll(server.url, server.api_key) as opened:
        yield opened


@pytest.fixture(scope="module")
def box(client: Atoll) -> Iterator[Sandbox]:
    """A sandbox that the tests of one module share."""
    with client.sandboxes.create() as sandbox:
        yield sandbox


@pytest_asyncio.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncAtoll]:
    """A client for one test."""
    async with AsyncAtoll(server.url, server.api_key) as opened:
        yield opened


@pytest_asyncio.fixture
async def async_box(async_client: AsyncAtoll) -> AsyncIterator[AsyncSandbox]:
    """A sandbox for one test."""
    async with await async_client.sandboxes.create() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def code_template() -> str | None:
    """The template in which code runs."""
    return os.environ.get("ATOLL_CODE_TEMPLATE")


@pytest.fixture
def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The address and the key in the environment, as a user has them."""
    monkeypatch.setenv("ATOLL_URL", server.url)
    monkeypatch.setenv("ATOLL_API_KEY", server.api_key)
    return server
