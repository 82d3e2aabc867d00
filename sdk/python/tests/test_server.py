"""Volumes, templates, builds, secrets, keys and providers against a real server."""

from __future__ import annotations

import io
import tarfile
import uuid

import pytest
from atoll_sandbox import Atoll, AuthenticationError, ConflictError, NotFoundError, Progress
from conftest import Server


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def test_volumes(client: Atoll) -> None:
    name = unique("v")
    volume = client.volumes.create(name, size_mib=64)
    try:
        assert volume.state == "ready" and client.volumes.get(name).id == volume.id
        assert client.volumes.write(name, "/d/a.txt", "from outside", mode="644").size == 12
        with client.sandboxes.create(mounts=[{"volume": name, "path": "/data"}]) as box:
            assert box.files.read_text("/data/d/a.txt") == "from outside"
            assert box.info.mounts[0].path == "/data"
            with pytest.raises(ConflictError) as caught:
                client.volumes.delete(name)
            assert caught.value.code == "volume_in_use"
        assert client.volumes.mkdir(name, "/e").kind == "directory"
        assert client.volumes.move(name, "/d/a.txt", "/e/b.txt").path == "/e/b.txt"
        assert client.volumes.read(name, "/e/b.txt") == b"from outside"
        assert sorted(entry.name for entry in client.volumes.entries(name)) == ["d", "e"]
        copy = client.volumes.copy(name, unique("copy"))
        client.volumes.remove(name, "/e")
        assert client.volumes.read(copy.name, "/e/b.txt") == b"from outside"
        assert client.volumes.update(name, size_mib=128).size_mib == 128
        client.volumes.delete(copy.name)
    finally:
        client.volumes.delete(name)
    assert name not in [item.name for item in client.volumes.list()]


def test_templates_and_builds(client: Atoll) -> None:
    name = unique("built")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in (("Dockerfile", "FROM busybox\nCOPY hello /hello\nENV WHO=build\n"), ("hello", "hi\n")):
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    build = client.builds.start(name, context=packed.getvalue())
    lines = [line.text for line in client.builds.logs(build.id)]
    done = client.builds.wait(build.id)
    assert done.status == "ready" and lines, done
    assert build.id in [item.id for item in client.builds.list(template=name)]
    assert [line.text for line in client.builds.logs(build.id, follow=False)] == lines
    with client.sandboxes.create(name) as box:
        assert box.commands.run("cat /hello; echo $WHO").stdout == "hi\nbuild\n"
    assert client.templates.tag(name, ["v1"]).name == name
    assert client.templates.update(name, memory_mib=333, aliases=[f"{name}-alias"]).memory_mib == 333
    assert client.templates.get(f"{name}-alias").version == client.templates.get(f"{name}:v1").version
    exported = b"".join(client.templates.export(name))
    again = client.templates.import_archive(unique("imported"), exported)
    assert again.made_from == "import" and again.name in [item.name for item in client.templates.list()]
    client.templates.untag(name, ["v1"])
    client.templates.delete(again.name)
    client.templates.delete(name)
    assert client.templates.collect().versions >= 0


def test_a_build_that_fails_says_why(client: Atoll) -> None:
    build = client.builds.start(unique("bad"), dockerfile="FROM busybox\nRUN exit 7\n")
    failure = client.builds.wait(build.id).failure
    assert failure is not None and failure.exit_code == 7
    assert client.builds.cancel(build.id).status == "failed"


def test_a_pull_that_cannot_work_is_an_error(client: Atoll) -> None:
    steps: list[Progress] = []
    with pytest.raises(Exception) as caught:
        client.templates.pull("127.0.0.1:9/nothing:1", on_progress=steps.append)
    assert type(caught.value).__module__ == "atoll_sandbox.errors"
    assert all(step.type in ("step", "layer") for step in steps)
    with pytest.raises(NotFoundError):
        client.templates.get("no-such-template")


def test_secrets(client: Atoll) -> None:
    name = f"SDK_{uuid.uuid4().hex[:8]}"
    assert client.secrets.create(name, "one").used_by == 0
    assert client.secrets.rotate(name, "two").rotated_at is not None
    assert name in [item.name for item in client.secrets.list()]
    client.secrets.delete(name)
    assert name not in [item.name for item in client.secrets.list()]


def test_keys(server: Server, client: Atoll) -> None:
    key = client.keys.create(name="sdk", scope="user")
    with Atoll(server.url, key.secret) as user:
        assert user.version().api == "v1"
        assert user.sandboxes.list() is not None
        client.keys.delete(key.id)
        with pytest.raises(AuthenticationError):
            list(user.sandboxes.list())
    assert key.id not in [item.id for item in client.keys.list()]


def test_providers(client: Atoll) -> None:
    default = next(item for item in client.providers.list() if item.default)
    assert (default.name, default.health, default.isolation) == ("container", "ok", "container")
    assert client.providers.test("container").ok
    with pytest.raises(NotFoundError):
        client.providers.settings("no-such-provider")
