"""The backend of Deep Agents: the standard suite of langchain-tests, our own cases, and an agent with a scripted model."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from atoll_sandbox import Atoll, Sandbox
from atoll_sandbox.deepagents import AtollBackend
from atoll_sandbox.deepagents_files import MAX_TEXT_BYTES, glob_query, is_shown, window
from conftest import Server
from deepagents import create_deep_agent
from langchain_core.messages import HumanMessage
from langchain_tests.integration_tests import SandboxIntegrationTests
from scripted_models import ScriptedChatModel


class TestStandardSuite(SandboxIntegrationTests):
    """The whole standard suite, which has the contract of deepagents before 0.7."""

    @pytest.fixture(scope="class")
    def sandbox(self, client: Atoll) -> Iterator[AtollBackend]:
        with client.sandboxes.create() as sandbox:
            # A command of the suite is `python`.
            sandbox.commands.run("ln -sf $(command -v python3) /usr/local/bin/python", user="root").check()
            yield AtollBackend(sandbox, contract="0.6")


@pytest.fixture(scope="module")
def backend(box: Sandbox) -> AtollBackend:
    return AtollBackend(box)


def test_the_contract_is_that_of_the_installed_version(backend: AtollBackend) -> None:
    assert backend.write("/home/user/w", "one").path == "/home/user/w"
    assert backend.write("/home/user/w", "two").error is None
    assert backend.read("/home/user/w").file_data == {"content": "two", "encoding": "utf-8"}


def test_globs_give_absolute_paths_of_files(backend: AtollBackend) -> None:
    backend.execute("mkdir -p g/sub g/.git; touch g/a.py g/sub/b.py g/.git/c.py g/.env; ln -s a.py g/link.py")
    root = "/home/user/g"

    def names(pattern: str) -> list[str]:
        found = backend.glob(pattern, root)
        assert found.error is None and found.matches is not None and not found.truncated
        return [info["path"].removeprefix(root + "/") for info in found.matches]

    assert names("*.py") == [".git/c.py", "a.py", "sub/b.py"]
    assert names("**/*.py") == ["a.py", "sub/b.py"]
    assert names("/*.py") == ["a.py"]
    assert names("*") == [".git/c.py", "a.py", "sub/b.py"]
    assert names(".env") == [".env"]
    assert backend.glob("../*", root).matches is None


def test_grep_has_a_total_and_skips_the_folder_of_git(backend: AtollBackend) -> None:
    backend.execute("mkdir -p q/.git; for n in 1 2 3; do echo needle > q/$n; done; echo needle > q/.git/x")
    everything = backend.grep("needle", "/home/user/q")
    assert everything.matches is not None and len(everything.matches) == 3 and not everything.truncated
    some = backend.grep("needle", "/home/user/q", max_count=2)
    assert some.matches is not None and len(some.matches) == 2 and some.truncated


def test_edits_keep_the_line_ends_of_a_file(backend: AtollBackend) -> None:
    backend.upload_files([("/home/user/crlf", b"a\r\nb\r\nc\r\n")])
    assert backend.edit("/home/user/crlf", "a\nb", "x\ny").occurrences == 1
    assert backend.download_files(["/home/user/crlf"])[0].content == b"x\r\ny\r\nc\r\n"


def test_files_are_deleted_with_their_folders(backend: AtollBackend) -> None:
    backend.write("/home/user/gone/x", "x")
    assert backend.delete("/home/user/gone").path == "/home/user/gone"
    assert "not found" in (backend.delete("/home/user/gone").error or "")


def test_a_command_has_a_time_limit(backend: AtollBackend) -> None:
    done = backend.execute("echo out; echo err >&2; sleep 60", timeout=3)
    assert done.exit_code == 124 and done.output.startswith("out\nerr\n") and "3 s" in done.output


def test_the_image_needs_no_python(client: Atoll) -> None:
    with client.sandboxes.create("busybox") as sandbox:
        backend = AtollBackend(sandbox)
        assert not sandbox.commands.run("command -v python3").ok
        root = "/tmp/n"
        assert backend.write(f"{root}/f.txt", "one two\n").error is None
        assert backend.edit(f"{root}/f.txt", "one", "1").occurrences == 1
        assert [info["path"] for info in backend.ls(root).entries or []] == [f"{root}/f.txt"]
        assert [match["text"] for match in backend.grep("two", root).matches or []] == ["1 two"]
        assert [info["path"] for info in backend.glob("*.txt", root).matches or []] == [f"{root}/f.txt"]
        assert (backend.read(f"{root}/f.txt").file_data or {})["content"] == "1 two"


def test_pages_of_long_files_go_on_where_they_ended() -> None:
    page = window("a\r\nb\rc\n", 1, 1)
    assert page is not None and (page.text, page.start, page.lines, page.total) == ("b", 1, 1, 3)
    assert window("a", 0, 0) is None
    long = "x" * (MAX_TEXT_BYTES // 3) + "\n"
    cut = window(long * 5, 0, 5)
    assert cut is not None and cut.lines == 2 and "truncated" in cut.text
    single = window("y" * (MAX_TEXT_BYTES * 2), 0, 5)
    assert single is not None and single.lines == 1 and "truncated" in single.text


def test_patterns_are_translated() -> None:
    assert glob_query("*.py", "/r", top_only=False) == "*.py"
    assert glob_query("*.py", "/r[1]", top_only=True) == "/r[[]1]/*.py"
    assert glob_query("/x", "/r", top_only=False) == "/r/x"
    assert is_shown("/r/.git/a", "*", "/r") and not is_shown("/r/.git/a", "**/*", "/r")
    assert is_shown("/r/.env", ".e*", "/r") and not is_shown("/r/.env", "*", "/r")


async def test_an_agent_solves_a_task(box: Sandbox) -> None:
    path = "/home/user/agent/primes.py"
    code = "print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))\n"
    model = ScriptedChatModel(
        calls=[
            ("write_file", {"file_path": path, "content": code}),
            ("edit_file", {"file_path": path, "old_string": "100", "new_string": "1000"}),
            ("grep", {"pattern": "1000", "path": "/home/user/agent", "output_mode": "content"}),
            ("execute", {"command": f"python3 {path}"}),
        ],
        last=lambda answer: f"There are {answer.split()[0]} primes.",
    )
    agent = create_deep_agent(model=model, backend=AtollBackend(box))
    done = await agent.ainvoke({"messages": [HumanMessage("How many primes are below 1000?")]})
    assert done["messages"][-1].content == "There are 168 primes."
    assert {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute"} <= set(model.tool_names)
    assert "primes.py" in model.told[2]


def test_the_coding_cli_finds_the_provider(environment: Server) -> None:
    pytest.importorskip("deepagents_code")
    (entry,) = importlib.metadata.entry_points(group="deepagents_code.sandbox_providers", name="atoll")
    provider = entry.load()()
    assert provider.metadata.supports_snapshot_name and provider.metadata.working_dir == "/home/user"
    made = provider.get_or_create(memory_mib=256)
    try:
        again = provider.get_or_create(sandbox_id=made.id)
        assert again.execute("pwd").output == "/home/user\n"
    finally:
        provider.delete(sandbox_id=made.id)
        provider.delete(sandbox_id=made.id)
    from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError

    with pytest.raises(SandboxNotFoundError):
        provider.get_or_create(sandbox_id="nothing-there")


KILLED = """
import os, signal
from atoll_sandbox.deepagents_provider import AtollProvider
print(AtollProvider().get_or_create(memory_mib=256).id, flush=True)
os.killpg(0, signal.SIGKILL)
"""


def test_a_sandbox_of_the_coding_cli_ends_with_it(environment: Server, client: Atoll) -> None:
    pytest.importorskip("deepagents_code")
    said = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, start_new_session=True)
    assert said.returncode == -signal.SIGKILL, said.stderr
    sandbox = client.sandboxes.get(said.stdout.strip())
    assert (sandbox.info.auto_stop_s, sandbox.info.auto_delete_s) == (3600, 86400)
    end = time.monotonic() + 30
    while sandbox.refresh().phase not in ("deleting", "deleted"):
        assert time.monotonic() < end, "the sandbox goes on"
        time.sleep(0.05)
