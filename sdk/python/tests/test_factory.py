"""One interface over the providers."""

from __future__ import annotations

import pytest
import sandbox_factory
from atoll_sandbox import Atoll, AtollError, AuthenticationError, ConflictError, NotFoundError, UnsupportedError
from atoll_sandbox.controller_settings import SandboxRequest, daytona_server, lifetime_s
from atoll_sandbox.factory import create_sandbox
from conftest import Server


def test_the_unified_interface(environment: Server) -> None:
    with create_sandbox(provider="container").create(timeout=120) as box:
        assert box.sandbox.info.timeout_s == 120 and box.sandbox.info.provider == "container"
        assert box.run_command("echo hi").stdout == "hi\n"
        assert box.execute("1 + 1").text == "2"
        box.write_file("a.txt", "x")
        assert box.read_file("a.txt") == "x"
        assert "8080" in box.get_preview_url(8080)
        box.stop()
        assert box.read_file("a.txt") == "x"
        sandbox = box.sandbox
        box.delete()
        assert sandbox.refresh().phase in ("deleting", "deleted")
        with pytest.raises(NotFoundError, match="no sandbox yet"):
            box.run_command("true")


def test_the_environment_chooses(environment: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_PROVIDER", "container")
    with create_sandbox() as box:
        box.create()
        assert (box.provider, box.sandbox.info.timeout_s) == ("container", 3600)


def test_a_provider_that_the_server_lacks_is_named(environment: Server) -> None:
    with create_sandbox("nowhere") as box, pytest.raises(NotFoundError, match="nowhere"):
        box.create()


def test_variables_of_the_vendors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_URL", "http://atoll.test:1")
    monkeypatch.setenv("ATOLL_API_KEY", "k")
    monkeypatch.setenv("E2B_TIMEOUT", "77")
    assert (lifetime_s("e2b"), lifetime_s("daytona"), lifetime_s(None)) == (77, 3600, 3600)
    monkeypatch.delenv("DAYTONA_SERVER_URL", raising=False)
    assert daytona_server("daytona", None, None) is None
    monkeypatch.setenv("DAYTONA_SERVER_URL", "http://daytona.test:2/api/")
    monkeypatch.setenv("DAYTONA_TARGET", "eu")
    assert daytona_server("e2b", None, None) is None and daytona_server("daytona", "http://atoll.test:1", None) is None
    chosen = daytona_server("daytona", None, None)
    assert chosen is not None and (chosen.address(), chosen.region()) == ("http://daytona.test:2/api", "eu")
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    # The key of Atoll is not sent to another server.
    with pytest.raises(AuthenticationError, match="DAYTONA_API_KEY"):
        create_sandbox("daytona")
    monkeypatch.setenv("DAYTONA_API_KEY", "d")
    assert chosen.key() == "d" and create_sandbox("daytona").provider == "daytona"


async def test_every_call_can_be_awaited(environment: Server, client: Atoll) -> None:
    sandbox = await sandbox_factory.create_sandbox()
    sandbox_id = await sandbox.create(template="python-3.11", timeout=120)
    assert type(sandbox_id) is str
    info = client.sandboxes.get(sandbox_id).info
    assert (info.timeout_s, info.on_timeout) == (120, "delete")
    await sandbox.write_file("/workspace/app.py", "open('/workspace/output.txt', 'w').write('written')")
    assert (await sandbox.run_command("python app.py && pip --version")).exit_code == 0
    assert await sandbox.read_file("/workspace/output.txt") == "written" == await sandbox.read_file("output.txt")
    assert (await sandbox.run_command("pwd")).stdout == "/workspace\n"
    assert (await sandbox.execute("import os; os.getcwd()")).text == "'/workspace'"
    assert "8000" in await sandbox.get_preview_url(port=8000)
    with pytest.raises(ConflictError, match="already"):
        await sandbox.create()
    await sandbox.delete()
    assert client.sandboxes.get(sandbox_id).phase in ("deleting", "deleted")
    async with await create_sandbox("container") as again:
        assert (await again.create()) != sandbox_id


async def test_a_create_is_an_id_and_a_context(environment: Server) -> None:
    created = create_sandbox("container").create(timeout=120)
    assert isinstance(created, str) and created == created.sandbox.id == await created
    with created as box:
        assert box.run_command("echo hi").stdout == created.run_command("echo hi").stdout == "hi\n"


async def test_a_daytona_server_is_used_by_its_own_protocol(
    environment: Server, client: Atoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_SERVER_URL", f"{environment.url}/daytona/api")
    monkeypatch.setenv("DAYTONA_API_KEY", environment.api_key)
    monkeypatch.setenv("DAYTONA_TARGET", "eu")
    # Whatever Atoll's own address is: it is not asked.
    monkeypatch.setenv("ATOLL_URL", "http://127.0.0.1:9")
    async with sandbox_factory.DaytonaSandbox() as sandbox:
        sandbox_id = await sandbox.create(template="python-3.11", timeout=3600)
        info = client.sandboxes.get(sandbox_id).info
        assert (info.timeout_s, info.labels) == (3600, {"code-toolbox-language": "python"})
        assert sandbox.daytona_sandbox.raw["target"] == "eu"
        with pytest.raises(UnsupportedError, match="daytona_sandbox"):
            assert sandbox.sandbox
        await sandbox.write_file("/workspace/app.py", "open('/workspace/output.txt', 'w').write('written')")
        assert (await sandbox.run_command("python app.py && pip --version")).exit_code == 0
        assert await sandbox.read_file("output.txt") == "written"
        assert (await sandbox.run_command("pwd; exit 3")).raw["stdout"] == "/workspace\n"
        assert (await sandbox.execute("print(6 * 7)")).stdout == "42\n"
        assert (await sandbox.execute("1 / 0")).error is not None
        assert "8000" in await sandbox.get_preview_url(port=8000)
        await sandbox.stop()
        assert (await sandbox.run_command("cat output.txt")).stdout.startswith("written")
    assert client.sandboxes.get(sandbox_id).phase in ("deleting", "deleted")
    with create_sandbox("daytona").create() as box:
        assert box.run_command("echo hi").stdout == "hi\n"


async def test_a_daytona_server_with_a_bare_template_has_a_workspace(
    environment: Server, client: Atoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_SERVER_URL", f"{environment.url}/daytona/api")
    monkeypatch.setenv("DAYTONA_API_KEY", environment.api_key)
    async with sandbox_factory.DaytonaSandbox() as sandbox:
        # Its user may make nothing in `/`, and there is no sudo.
        await sandbox.create(template="host", timeout=600)
        await sandbox.write_file("/workspace/app.py", "open('/workspace/output.txt', 'w').write('written')")
        done = await sandbox.run_command("python app.py && pwd")
        assert (done.exit_code, done.stdout) == (0, "/workspace\n")
        assert await sandbox.read_file("output.txt") == "written"
        # A failed upload says why.
        with pytest.raises(AtollError, match="/proc/nowhere"):
            await sandbox.write_file("/proc/nowhere", "x")


def test_a_repository_is_cloned_at_the_start(environment: Server, client: Atoll) -> None:
    with create_sandbox() as box, pytest.raises(AtollError, match="nothing"):
        # A repository that is not there: the create fails, and no sandbox stays behind.
        box.create(timeout=1234, git_url="/tmp/nothing.git")
    assert [item for item in client.sandboxes.list(phase="running") if item.info.timeout_s == 1234] == []
    # A clone that succeeds is in tests/guides, which has a server for it.
    assert SandboxRequest(None, None, None, 1, "https://git.test/you/app.git/").repository() == "app"
