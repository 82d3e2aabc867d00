"""Code, git, previews and egress against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from atoll_sandbox import (
    Atoll,
    CodeStarted,
    ConflictError,
    ExecutionEnded,
    ExecutionFailed,
    ExecutionResult,
    InvalidError,
    NotFoundError,
    Output,
    Sandbox,
)


@pytest.fixture(scope="module")
def coder(client: Atoll, code_template: str | None) -> Iterator[Sandbox]:
    """A sandbox with the code interpreter."""
    with client.sandboxes.create(code_template) as sandbox:
        yield sandbox


def test_code_keeps_its_state(coder: Sandbox) -> None:
    assert coder.code.run("x = 20").text is None
    done = coder.code.run("print('hi'); x + 1")
    assert (done.text, done.stdout, done.error, done.results[0].is_main) == ("21", "hi\n", None, True)
    failed = coder.code.run("1 / 0")
    assert failed.error is not None and failed.error.name == "ZeroDivisionError"
    assert coder.code.run("import os; os.environ['A']", env={"A": "b"}).text == "'b'"


def test_code_is_interrupted_by_a_time_limit(coder: Sandbox) -> None:
    assert coder.code.run("import time; time.sleep(60)", timeout_s=1).timed_out


def test_code_streams(coder: Sandbox) -> None:
    events = list(coder.code.stream("print('out')\n[1, 2]"))
    assert isinstance(events[0], CodeStarted) and isinstance(events[-1], ExecutionEnded)
    assert "".join(event.text for event in events if isinstance(event, Output)) == "out\n"
    assert [event.text for event in events if isinstance(event, ExecutionResult)] == ["[1, 2]"]
    failed = [event for event in coder.code.stream("nope") if isinstance(event, ExecutionFailed)]
    assert failed[0].name == "NameError"


def test_contexts_are_separate(coder: Sandbox) -> None:
    context = coder.code.contexts.create(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    coder.code.run("y = 1", context=context.id)
    assert coder.code.run("y").error is not None
    assert coder.code.contexts.get(context.id).id == context.id
    assert context.id in [item.id for item in coder.code.contexts.list()]
    coder.code.contexts.interrupt(context.id)
    assert coder.code.contexts.restart(context.id).id == context.id
    assert coder.code.run("y", context=context.id).error is not None
    coder.code.contexts.delete(context.id)
    with pytest.raises(NotFoundError):
        coder.code.contexts.get(context.id)


def test_other_languages_run(coder: Sandbox) -> None:
    assert coder.code.run("echo $((6 * 7))", language="bash").stdout == "42\n"
    assert coder.code.run("console.log(6 * 7)", language="javascript").stdout == "42\n"


def test_git(box: Sandbox) -> None:
    git = box.git
    git.init("/tmp/upstream", bare=True, branch="main")
    git.clone("/tmp/upstream", "work")
    box.files.write("work/a.txt", "one\n")
    assert [(file.path, file.worktree) for file in git.status("work").files] == [("a.txt", "untracked")]
    git.add(["."], "work")
    assert "+one" in git.diff("work", staged=True).output
    first = git.commit("first", "work", author="A", email="a@b.test")
    assert git.log("work")[0].hash == first.hash and git.log("work", limit=1)[0].email == "a@b.test"
    git.push("work", set_upstream=True)
    assert git.status("work").ahead == 0
    git.create_branch("topic", "work", checkout=True)
    assert (git.branches("work").current, git.branches("work").items) == ("topic", ["main", "topic"])
    box.files.write("work/a.txt", "two\n")
    git.restore(["a.txt"], "work")
    assert box.files.read_text("work/a.txt") == "one\n"
    git.checkout("main", "work")
    git.delete_branch("topic", "work", force=True)
    git.add_remote("other", "/tmp/upstream", "work")
    assert sorted(remote.name for remote in git.remotes("work")) == ["origin", "other"]
    git.pull("work")
    git.reset("work", mode="hard", target=first.hash)
    with pytest.raises((InvalidError, NotFoundError, ConflictError)):
        git.checkout("no-such-branch", "work")


def test_previews_reach_a_port(box: Sandbox, client: Atoll) -> None:
    box.files.write("site/index.html", "<p>hello</p>")
    box.commands.start("cd site && exec python3 -m http.server 8124", detach=True)
    box.commands.run("for n in $(seq 200); do (: < /dev/tcp/127.0.0.1/8124) && break; sleep 0.05; done", timeout_s=60)
    preview = box.previews.create(8124, expires_s=600)
    assert preview.token and preview.token in preview.url and preview.path_url.startswith(client.url)
    assert httpx.get(preview.path_url, follow_redirects=True).text == "<p>hello</p>"
    assert [item.id for item in box.previews.list()] == [preview.id]
    box.previews.delete(preview.id)
    assert httpx.get(preview.path_url).status_code in (401, 403)
    assert box.previews.create(8124, public=True).token is None


LOOKUPS = """
import socket, time
while True:
    try: socket.getaddrinfo("refused.test", 80)
    except OSError: time.sleep(0.1)
"""


def test_egress_is_logged_and_learned(client: Atoll) -> None:
    with client.sandboxes.create(network={"mode": "custom", "allow_domains": ["allowed.test"]}) as box:
        lookups = box.commands.start(["python3", "-c", LOOKUPS])
        record = next(iter(box.egress.follow(verdict="refused")))
        assert record.name == "refused.test" and record.at.year >= 2025
        lookups.kill()
        assert [item.name for item in box.egress.log(verdict="refused", limit=1)] == ["refused.test"]
        assert all(item.at >= record.at for item in box.egress.log(since=record.at))
        assert isinstance(box.info.network, dict) and box.info.network.get("allow_domains") == ["allowed.test"]
        assert box.egress.learned_policy()["mode"] == "deny-all", "no connection was allowed"
        assert box.update(network="deny-all").network == "deny-all"
