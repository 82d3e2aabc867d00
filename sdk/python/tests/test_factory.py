"""One interface over the providers."""

from __future__ import annotations

import pytest
from atoll_sandbox import Atoll, AtollError, NotFoundError
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
    monkeypatch.delenv("ATOLL_URL", raising=False)
    monkeypatch.setenv("ATOLL_API_KEY", "k")
    monkeypatch.setenv("E2B_TIMEOUT", "77")
    monkeypatch.setenv("DAYTONA_SERVER_URL", "http://daytona.test:1")
    asked: list[dict[str, object]] = []

    def created(self: object, template: str | None = None, **options: object) -> None:
        asked.append({**options, "template": template})

    monkeypatch.setattr("atoll_sandbox.sync.sandboxes.Sandboxes.create", created)
    monkeypatch.setenv("DAYTONA_TARGET", "eu")
    create_sandbox("e2b").create(image="python:3.12-slim")
    create_sandbox("daytona").create()
    assert asked[0] == {"provider": "e2b", "timeout_s": 77, "image": "python:3.12-slim", "template": None}
    assert asked[1] == {"provider": "daytona", "timeout_s": 3600, "labels": {"target": "eu"}, "template": None}
    assert create_sandbox("daytona")._client.url == "http://daytona.test:1"  # pyright: ignore[reportPrivateUsage]


def test_a_repository_is_cloned_at_the_start(environment: Server, client: Atoll) -> None:
    with create_sandbox() as box, pytest.raises(AtollError, match="nothing"):
        # A repository that is not there: the create fails, and no sandbox stays behind.
        box.create(timeout=1234, git_url="/tmp/nothing.git")
    assert [item for item in client.sandboxes.list(phase="running") if item.info.timeout_s == 1234] == []
    with create_sandbox() as box:
        box.create()
        box.run_command("git init -q --bare /tmp/some.git").check()
        box._clone("/tmp/some.git")  # pyright: ignore[reportPrivateUsage]
        assert box.run_command("git -C some status").ok
