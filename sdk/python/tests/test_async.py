"""The asynchronous client against a real server; the other suites cover the same code in its blocking form."""

from __future__ import annotations

import asyncio

import pytest
from atoll_sandbox import AsyncAtoll, AsyncSandbox, CommandExit, NotFoundError, Output
from conftest import Server


async def test_commands_run_at_the_same_time(async_box: AsyncSandbox) -> None:
    results = await asyncio.gather(*(async_box.commands.run(f"echo {number}") for number in range(8)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]


async def test_streams_processes_and_terminals(async_box: AsyncSandbox) -> None:
    events = [event async for event in async_box.commands.stream("echo out; exit 4")]
    assert "".join(event.text for event in events if isinstance(event, Output)) == "out\n"
    assert isinstance(events[-1], CommandExit)
    async with await async_box.commands.start("cat", open_stdin=True) as process:
        await process.send_stdin("x")
        await process.close_stdin()
        assert (await process.wait()).stdout == "x"
    async with await async_box.terminals.open("t", shell=["sh"]) as terminal:
        await terminal.send("echo a''b; exit 5\n")
        assert b"ab" in b"".join([chunk async for chunk in terminal.receive()])
        assert terminal.exit_code == 5


async def test_files_lists_and_forks(async_client: AsyncAtoll, async_box: AsyncSandbox) -> None:
    async def pieces():  # pyright: ignore
        yield b"a"
        yield b"b"

    await async_box.files.write("f", pieces())
    assert b"".join([chunk async for chunk in async_box.files.read_stream("f")]) == b"ab"
    assert async_box.id in [box.id async for box in async_client.sandboxes.list()]
    (copy,) = await async_box.fork()
    async with copy:
        assert await copy.files.read("f") == b"ab"
    with pytest.raises(NotFoundError):
        await copy.commands.run("true")


async def test_the_environment_is_enough(environment: Server) -> None:
    async with await AsyncSandbox.create() as box:
        assert (await box.commands.run("echo hi")).stdout == "hi\n"


async def test_a_cancelled_call_leaves_the_client_usable(async_box: AsyncSandbox) -> None:
    waiting = asyncio.create_task(async_box.commands.run("sleep 30"))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await async_box.commands.run("echo on")).stdout == "on\n"
