"""The life of sandboxes against a real server."""

from __future__ import annotations

import uuid

import pytest
from atoll_sandbox import Atoll, AuthenticationError, ConflictError, InvalidError, NotFoundError, Sandbox
from conftest import Server


def test_create_run_delete(client: Atoll) -> None:
    with client.sandboxes.create(name=f"sdk-{uuid.uuid4().hex[:8]}", memory_mib=256, env={"WHO": "sdk"}) as box:
        assert (box.phase, box.info.memory_mib, "WHO" in box.info.env_names) == ("running", 256, True)
        assert box.commands.run("echo $WHO").stdout == "sdk\n"
        assert client.sandboxes.get(box.name or "").id == box.id
        assert box.id in repr(box)
    assert box.phase in ("deleting", "deleted")
    with pytest.raises(NotFoundError) as caught:
        box.commands.run("true")
    assert caught.value.code == "sandbox_not_found" and caught.value.request_id


def test_the_environment_is_enough(environment: Server) -> None:
    with Sandbox.create() as box:
        assert box.commands.run(["echo", "a b"]).stdout == "a b\n"


def test_a_wrong_key_and_a_wrong_field_have_their_errors(server: Server, client: Atoll) -> None:
    with Atoll(server.url, "atl_wrong") as stranger, pytest.raises(AuthenticationError):
        stranger.sandboxes.create()
    with pytest.raises(InvalidError) as caught:
        client.sandboxes.create(memory_mib=-1)
    assert caught.value.field and caught.value.request_id


def test_the_same_idempotency_key_is_the_same_sandbox(client: Atoll) -> None:
    key = str(uuid.uuid4())
    with client.sandboxes.create(idempotency_key=key) as box:
        assert client.sandboxes.create(idempotency_key=key).id == box.id


def test_pause_stop_and_their_opposites(client: Atoll) -> None:
    with client.sandboxes.create() as box:
        assert box.pause().phase == "paused"
        assert box.resume().phase == "running"
        box.files.write("kept", "yes")
        assert box.stop().phase == "stopped"
        with pytest.raises(ConflictError):
            box.pause()
        assert box.start().phase == "running"
        assert box.files.read_text("kept") == "yes"
        assert box.restart().phase == "running"
        assert box.refresh().phase == "running"


def test_lifetimes_and_holds(client: Atoll) -> None:
    with client.sandboxes.create(timeout_s=300, auto_pause_s=600) as box:
        first = box.info.timeout_at
        assert first is not None
        later = box.extend(900).timeout_at
        assert later is not None and str(later) > str(first)
        assert box.hold(60, "a test").hold is not None
        assert box.awake().because == ["hold"] or "hold" in box.awake().because
        assert box.release().hold is None
        assert box.update(labels={"a": "b"}, timeout_s=None).labels == {"a": "b"}
        assert box.info.timeout_at is None


def test_lists_come_page_by_page(client: Atoll) -> None:
    label = {"run": uuid.uuid4().hex}
    boxes = [client.sandboxes.create(labels=label) for _ in range(3)]
    try:
        found = [box.id for box in client.sandboxes.list(labels=label, page_size=2)]
        assert found == [box.id for box in reversed(boxes)]
        assert [box.id for box in client.sandboxes.list(labels=label, phase=["paused", "stopped"])] == []
    finally:
        for box in boxes:
            box.delete()


def test_fork_snapshot_rollback_lineage(client: Atoll) -> None:
    with client.sandboxes.create() as box:
        box.files.write("n", "1")
        snapshot = box.snapshot(f"sdk-{uuid.uuid4().hex[:8]}")
        box.files.write("n", "2")
        copies = box.fork(2)
        try:
            assert [copy.files.read_text("n") for copy in copies] == ["2", "2"]
            assert sorted(box.lineage().children) == sorted(copy.id for copy in copies)
        finally:
            for copy in copies:
                copy.delete()
        with client.sandboxes.create(snapshot=snapshot.id) as old:
            assert old.files.read_text("n") == "1"
        assert box.rollback(snapshot.id).phase == "running"
        assert box.files.read_text("n") == "1"
        assert [item.id for item in client.snapshots.list(sandbox=box.id)] == [snapshot.id]
        assert client.snapshots.verify(snapshot.name or "").id == snapshot.id
        client.snapshots.delete(snapshot.id)
        with pytest.raises(NotFoundError):
            client.snapshots.get(snapshot.id)


def test_threads_have_one_sandbox(client: Atoll) -> None:
    thread = f"sdk-{uuid.uuid4().hex}"
    with client.sandboxes.create(thread=thread, on_exit="destroy") as box:
        assert client.sandboxes.create(thread=thread, on_exit="destroy").id == box.id
        assert client.threads.get(thread).sandbox == box.id
        assert thread in [item.thread for item in client.threads.list()]
        client.threads.end(thread)
        assert box.refresh().phase in ("deleting", "deleted")


def test_metrics_logs_and_events(client: Atoll) -> None:
    with client.sandboxes.create() as box:
        process = box.commands.start("echo said; echo wrong >&2; sleep 60", detach=True)
        for line in box.logs(follow=True):
            if line.type == "stdout":
                assert (line.text, line.pid) == ("said\n", process.pid)
                break
        assert box.metrics().limits.memory_mib == box.info.memory_mib
        assert isinstance(box.metrics_history(limit=1), list)
        first = next(iter(client.events(sandbox=box.id, after=0)))
        assert (first.kind, first.sandbox) == ("phase", box.id)
        events = list(client.events(sandbox=box.id, after=0, follow=False))
        assert events[0].seq == first.seq and events[-1].to == "running"
