"""The Daytona client: the guide's names against a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from atoll_sandbox import Atoll, AuthenticationError, InvalidError, NotFoundError
from atoll_sandbox.daytona import AsyncDaytona, CreateSandboxParams, Daytona, DaytonaConfig
from atoll_sandbox.daytona_settings import create_body, size_body
from conftest import Server


@pytest.fixture(scope="module")
def daytona(server: Server) -> Iterator[Daytona]:
    """A client for the tests of this module."""
    with Daytona(DaytonaConfig(api_key=server.api_key, api_url=f"{server.url}/daytona/api")) as opened:
        yield opened


def test_the_life_of_a_sandbox(daytona: Daytona) -> None:
    name = f"sdk-{uuid.uuid4().hex}"
    params = CreateSandboxParams(
        language="python", cpu=1.0, memory=1.0, disk=3.0, name=name, env={"A": "b"}, labels={"for": name}
    )
    sandbox = daytona.create(params)
    try:
        assert (sandbox.name, sandbox.state, sandbox.cpu, sandbox.memory, sandbox.disk) == (name, "started", 1, 1, 3)
        assert sandbox.process.code_run("import os; print(os.environ['A'])").result == "b\n"
        done = sandbox.process.execute_command("echo out; echo err >&2; exit 3")
        assert done.exit_code == 3 and "out" in done.result and "err" in done.result
        sandbox.fs.upload_file("text", "/tmp/new folder/a b.txt")
        assert sandbox.fs.download_file("/tmp/new folder/a b.txt") == b"text"
        sandbox.stop()
        assert daytona.get(name).state == "stopped"
        sandbox.start()
        sandbox.restart()
        assert sandbox.state == "started"
        assert sandbox.fs.download_file("/tmp/new folder/a b.txt") == b"text"
        sandbox.resize(cpu=2.0, memory=2.0)
        assert (sandbox.cpu, sandbox.memory) == (2, 2)
        assert [found.id for found in daytona.list(labels={"for": name})] == [sandbox.id]
        assert sandbox.get_preview_link(3000).raw["token"]
        with pytest.raises(InvalidError, match="nothing to resize"):
            sandbox.resize()
    finally:
        daytona.delete(sandbox)
    with pytest.raises(NotFoundError):
        daytona.get(sandbox.id)


def test_a_gpu_is_refused_and_named(daytona: Daytona) -> None:
    with pytest.raises(InvalidError, match="this server has no GPU"):
        daytona.create(CreateSandboxParams(language="python", cpu=2.0, memory=4.0, gpu=1.0, disk=10.0))


async def test_the_asynchronous_client_is_the_same(server: Server, monkeypatch: pytest.MonkeyPatch, client: Atoll) -> None:
    # Without another address it is the server of ATOLL_URL, with its key.
    for name in ("DAYTONA_API_URL", "DAYTONA_SERVER_URL", "DAYTONA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATOLL_URL", server.url)
    monkeypatch.setenv("ATOLL_API_KEY", server.api_key)
    async with AsyncDaytona() as daytona:
        sandbox = await daytona.create()
        try:
            assert client.sandboxes.get(sandbox.id).phase == "running"
            assert (await sandbox.process.code_run("print(1)")).result == "1\n"
        finally:
            await daytona.delete(sandbox)


def test_the_address_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_URL", "http://atoll.test:1")
    monkeypatch.setenv("ATOLL_API_KEY", "atoll")
    for name in ("DAYTONA_API_URL", "DAYTONA_SERVER_URL", "DAYTONA_API_KEY", "DAYTONA_TARGET"):
        monkeypatch.delenv(name, raising=False)
    assert (DaytonaConfig().address(), DaytonaConfig().key()) == ("http://atoll.test:1/daytona/api", "atoll")
    monkeypatch.setenv("DAYTONA_SERVER_URL", "http://one.test/api")
    with pytest.raises(AuthenticationError, match="DAYTONA_API_KEY"):
        DaytonaConfig().key()
    monkeypatch.setenv("DAYTONA_API_URL", "http://two.test/api/")
    monkeypatch.setenv("DAYTONA_API_KEY", "d")
    assert (DaytonaConfig().address(), DaytonaConfig().key()) == ("http://two.test/api", "d")
    assert DaytonaConfig(api_url="http://three.test", api_key="e").address() == "http://three.test"


def test_requests_have_the_names_of_the_api() -> None:
    body = create_body(
        CreateSandboxParams(
            cpu=2.0,
            memory=1.5,
            gpu=1.0,
            volumes=[{"volume_id": "v", "mount_path": "/workspace"}],
            network_block_all=True,
            network_allow_list="10.0.0.0/8,172.16.0.0/12",
            auto_stop_interval=30,
            auto_archive_interval=60,
            auto_delete_interval=120,
            snapshot="s",
        ),
        "eu",
    )
    assert body == {
        "labels": {"code-toolbox-language": "python"},
        "target": "eu",
        "snapshot": "s",
        "cpu": 2,
        "memory": 1.5,
        "gpu": 1,
        "volumes": [{"volumeId": "v", "mountPath": "/workspace"}],
        "networkBlockAll": True,
        "networkAllowList": "10.0.0.0/8,172.16.0.0/12",
        "autoStopInterval": 30,
        "autoArchiveInterval": 60,
        "autoDeleteInterval": 120,
    }
    assert type(size_body(cpu=2.0)["cpu"]) is int
