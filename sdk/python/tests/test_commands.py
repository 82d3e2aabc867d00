"""Commands, sessions and terminals against a real server."""

from __future__ import annotations

import pytest
from atoll_sandbox import CommandExit, CommandFailedError, CommandStarted, NotFoundError, Output, Sandbox


def test_run_takes_a_line_or_arguments(box: Sandbox) -> None:
    assert box.commands.run("echo $((6*7))").stdout == "42\n"
    assert box.commands.run(["echo", "$HOME"]).stdout == "$HOME\n"


def test_run_has_its_options(box: Sandbox) -> None:
    done = box.commands.run("pwd; echo $A; cat; id -un >&2; exit 3", cwd="/tmp", env={"A": "1"}, stdin="in", user="root")
    assert (done.stdout, done.stderr, done.exit_code, done.ok) == ("/tmp\n1\nin", "root\n", 3, False)
    assert done.output == "/tmp\n1\ninroot\n"
    with pytest.raises(CommandFailedError) as caught:
        done.check()
    assert caught.value.exit_code == 3


def test_bytes_that_are_no_text_arrive_exactly(box: Sandbox) -> None:
    done = box.commands.run("cat", stdin=b"\xff\x00\xfe")
    assert done.stdout_bytes == b"\xff\x00\xfe"


def test_a_timeout_ends_the_command(box: Sandbox) -> None:
    done = box.commands.run("sleep 60", timeout_s=0.2)
    assert (done.exit_code, done.timed_out) == (124, True)


def test_a_stream_gives_output_as_it_comes(box: Sandbox) -> None:
    events = list(box.commands.stream("echo out; echo err >&2; exit 4"))
    assert isinstance(events[0], CommandStarted) and events[0].pid > 0
    text = {event.type: event.text for event in events if isinstance(event, Output)}
    assert text == {"stdout": "out\n", "stderr": "err\n"}
    assert isinstance(events[-1], CommandExit) and events[-1].exit_code == 4


def test_a_process_takes_input_and_is_waited_for(box: Sandbox) -> None:
    with box.commands.start("cat; echo end", open_stdin=True, tag="reader") as process:
        assert [found.tag for found in box.commands.list() if found.pid == process.pid] == ["reader"]
        process.send_stdin("hello\n")
        process.send_stdin(b"there\n")
        process.close_stdin()
        done = process.wait()
        assert (done.stdout, done.exit_code, process.exit_code) == ("hello\nthere\nend\n", 0, 0)
        assert process.wait().stdout == done.stdout


def test_a_process_is_killed(box: Sandbox) -> None:
    process = box.commands.start(["sleep", "60"])
    process.kill("TERM")
    assert process.wait().signal == 15


def test_a_detached_process_is_found_again(box: Sandbox) -> None:
    started = box.commands.start("echo first; read line; echo $line", detach=True, open_stdin=True)
    again = box.commands.connect(started.pid)
    again.send_stdin("second\n")
    assert again.wait().stdout == "first\nsecond\n"
    with pytest.raises(NotFoundError):
        box.commands.connect(started.pid).kill()


def test_sessions_keep_their_state(box: Sandbox) -> None:
    box.sessions.create("s1", cwd="/tmp")
    box.sessions.run("s1", "x=5; cd /usr")
    assert box.sessions.run("s1", "echo $x $PWD").stdout == "5 /usr\n"
    command = box.sessions.start("s1", "read line; echo got $line")
    box.sessions.send_stdin("s1", command, "this\n")
    events = list(box.sessions.follow("s1", command))
    assert isinstance(events[-1], CommandExit) and events[-1].exit_code == 0
    assert "got this" in box.sessions.logs("s1", command).stdout
    assert box.sessions.command("s1", command).exit_code == 0
    assert [item.name for item in box.sessions.list()] == ["s1"]
    assert len(box.sessions.get("s1").commands) == 3
    box.sessions.delete("s1")
    assert box.sessions.list() == []


def test_a_terminal_is_a_shell(box: Sandbox) -> None:
    with box.terminals.open("t1", cols=100, rows=30, shell=["sh"]) as terminal:
        terminal.resize(120, 40)
        terminal.send("stty size; echo a''b; exit 5\n")
        text = b"".join(terminal.receive()).decode()
        assert "40 120" in text and "ab" in text, (text, terminal.exit_code)
        assert terminal.exit_code == 5


def test_a_terminal_is_found_again_by_its_thread(box: Sandbox) -> None:
    with box.terminals.open("t2", shell=["sh"]) as first:
        first.send("x=kept; echo d''one\n")
        read_until(first.receive(), b"done")
    with box.terminals.open("t2") as second:
        assert second.id == first.id
        second.send("echo $x-$x\n")
        read_until(second.receive(), b"kept-kept")
    assert second.id in [terminal.id for terminal in box.terminals.list()]
    box.terminals.delete(second.id)


def read_until(output: object, wanted: bytes) -> None:
    """Reads until a text has come."""
    seen = b""
    for chunk in output:  # pyright: ignore
        seen += chunk  # pyright: ignore
        if wanted in seen:  # pyright: ignore
            return
    pytest.fail(f"{wanted!r} is not in {seen!r}")
