"""Drives every tool of Atoll's MCP server with the official Python client.

    drive.py http|stdio legacy|modern

Reads MCP_URL and MCP_KEY for http, and ATOLL_* and ATOLL_BIN for stdio. Exits with 0 if everything holds.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import time

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

TOOLS = """sandbox_create sandbox_list sandbox_pause sandbox_resume sandbox_fork sandbox_delete shell shell_start shell_poll
run_code file_read file_write file_edit file_list file_search preview egress_explain snapshot rollback""".split()
REVISION = {"legacy": "2025-11-25", "modern": "2026-07-28"}
ABSENT = "aaaaaaaaaaaaaaaaaaaa"


@contextlib.asynccontextmanager
async def connect(transport: str, era: str):
    mode = {"legacy": "legacy", "modern": REVISION["modern"]}[era]
    if transport == "stdio":
        env = {name: value for name, value in os.environ.items() if name.startswith(("ATOLL_", "PATH", "HOME"))}
        server = StdioServerParameters(command=os.environ["ATOLL_BIN"], args=["mcp"], env=env)
        async with Client(server, mode=mode) as client:
            yield client
        return
    headers = {"Authorization": f"Bearer {os.environ['MCP_KEY']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
        async with Client(streamable_http_client(os.environ["MCP_URL"], http_client=http), mode=mode) as client:
            yield client


class Driver:
    def __init__(self, client):
        self.client = client
        self.called = set()

    async def call(self, tool, **arguments):
        """The structured content, which the client has checked against the output schema."""
        self.called.add(tool)
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, f"{tool} {arguments}: {result.content}"
        assert json.loads(result.content[0].text) == result.structured_content, tool
        return result.structured_content

    async def fails(self, tool, says, **arguments):
        """A call that fails with a text that a model can read."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, f"{tool} {arguments} did not fail"
        text = result.content[0].text
        assert says in text, f"{tool} {arguments}: {text}"


async def commands(d: Driver):
    ran = await d.call("shell", command="echo out; echo err >&2; exit 3", env={"A": "b"})
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "out\n", "err\n"), ran
    again = await d.call("shell", command="echo $A; pwd", cwd="/tmp", env={"A": "b c"})
    assert again["stdout"] == "b c\n/tmp\n", again
    assert again["sandbox"] == ran["sandbox"], "one sandbox for one client"
    late = await d.call("shell", command="echo begun; sleep 30", timeout_s=1)
    assert (late["exit_code"], late["timed_out"], late["stdout"]) == (124, True, "begun\n"), late
    long = await d.call("shell", command="seq 1 50000")
    assert long["stdout"].startswith("1\n2\n") and long["stdout"].endswith("50000\n") and long["stdout_file"], long
    assert len(long["stdout"]) < 40_000
    kept = await d.call("shell", command=f"wc -l < {long['stdout_file']}")
    assert kept["stdout"].strip() == "50000", kept
    started = await d.call("shell_start", command="echo one; sleep 0.2; echo two >&2; sleep 60")
    seen, at = "", 0
    while "two" not in seen:
        polled = await d.call("shell_poll", id=started["id"], **{"from": at})
        assert polled["running"], polled
        seen, at = seen + polled["output"], polled["next"]
    assert seen == "one\ntwo\n", seen
    stopped = await d.call("shell_poll", id=started["id"], stop=True)
    assert not stopped["running"], stopped
    await d.fails("shell_poll", "process_not_found", id=started["id"])
    short = await d.call("shell_start", command="cd /tmp; pwd; exit 5")
    ended = await d.call("shell_poll", id=short["id"], wait_s=20)
    assert (ended["running"], ended["exit_code"], ended["output"]) == (False, 5, "/tmp\n"), ended


async def code(d: Driver):
    await d.call("run_code", code="x = 20")
    done = await d.call("run_code", code="print('hi')\nx * 2 + 2", language="python")
    assert (done["stdout"], done["results"]) == ("hi\n", ["42"]), done
    result = await d.client.call_tool("run_code", {"code": "1 / 0"})
    assert result.is_error and "ZeroDivisionError" in result.structured_content["error"], result
    shell = await d.call("run_code", code="y=7; echo $((y * 6))", language="bash")
    assert shell["stdout"] == "42\n", shell


async def files(d: Driver):
    written = await d.call("file_write", path="/tmp/mcp/a.txt", content="héllo\nworld\n")
    assert written["bytes"] == 13, written
    read = await d.call("file_read", path="/tmp/mcp/a.txt")
    assert (read["content"], read["encoding"], read["size"], read["next"]) == ("héllo\nworld\n", "text", 13, 13), read
    part = await d.call("file_read", path="/tmp/mcp/a.txt", limit=2)
    assert (part["content"], part["next"]) == ("h", 1), part
    line = await d.call("file_read", path="/tmp/mcp/a.txt", line=2, lines=1)
    assert (line["content"], line["next"], line["next_line"]) == ("world\n", 13, None), line
    first = await d.call("file_read", path="/tmp/mcp/a.txt", lines=1)
    assert (first["content"], first["next"], first["next_line"]) == ("héllo\n", 7, 2), first
    await d.fails("file_read", "offset", path="/tmp/mcp/a.txt", line=2, offset=1)
    raw = base64.b64encode(bytes(range(256))).decode()
    await d.call("file_write", path="/tmp/mcp/raw", content=raw, encoding="base64")
    read = await d.call("file_read", path="/tmp/mcp/raw")
    assert (read["content"], read["encoding"]) == (raw, "base64"), read
    edited = await d.call("file_edit", path="/tmp/mcp/a.txt", edits=[{"find": "world", "replace": "there"}])
    assert edited["replacements"] == 1 and "+there" in edited["diff"], edited
    await d.fails("file_edit", "", path="/tmp/mcp/a.txt", edits=[{"find": "absent", "replace": ""}])
    listed = await d.call("file_list", path="/tmp/mcp")
    assert [entry["path"] for entry in listed["entries"]] == ["/tmp/mcp/a.txt", "/tmp/mcp/raw"], listed
    found = await d.call("file_search", pattern="th.re", path="/tmp/mcp")
    assert [(one["path"], one["line"], one["content"]) for one in found["matches"]] == [("/tmp/mcp/a.txt", 2, "there")], found
    named = await d.call("file_search", glob="*.txt", path="/tmp/mcp")
    assert [one["path"] for one in named["matches"]] == ["/tmp/mcp/a.txt"], named
    await d.fails("file_read", "file_not_found", path="/tmp/mcp/none")


async def resources(d: Driver, own: str):
    listed = await d.client.list_resources()
    template = listed.resources[0]
    assert str(template.uri).startswith("atoll://templates/"), template
    content = (await d.client.read_resource(str(template.uri))).contents[0]
    assert json.loads(content.text)["name"] == template.name, content
    forms = await d.client.list_resource_templates()
    assert forms.resource_templates[0].uri_template.startswith("atoll://sandboxes/"), forms
    for sandbox in (own, "own"):
        content = (await d.client.read_resource(f"atoll://sandboxes/{sandbox}/tmp/mcp/a.txt")).contents[0]
        assert content.text == "héllo\nthere\n", content
    blob = (await d.client.read_resource(f"atoll://sandboxes/{own}/tmp/mcp/raw")).contents[0].blob
    assert base64.b64decode(blob) == bytes(range(256))
    for uri in ("atoll://templates/none-such", "atoll://sandboxes/own/tmp/none", "file:///etc/passwd", f"atoll://sandboxes/{ABSENT}/x"):
        try:
            await d.client.read_resource(uri)
        except MCPError as error:
            assert error.code == -32602, error
        else:
            raise AssertionError(f"{uri} was read")


async def life(d: Driver, own: str):
    made = await d.call("sandbox_create", name="made", env={"WHO": "me"}, network="deny-all", idle_stop_s=600)
    assert made["phase"] == "running" and made["sandbox"] != own, made
    ran = await d.call("shell", sandbox="made", command="echo $WHO > kept; cat kept")
    assert (ran["stdout"], ran["sandbox"]) == ("me\n", made["sandbox"]), ran
    taken = await d.call("snapshot", sandbox="made", name="before")
    await d.call("shell", sandbox="made", command="rm kept")
    back = await d.call("rollback", sandbox="made", snapshot=taken["snapshot"])
    assert back["phase"] == "running", back
    assert (await d.call("shell", sandbox="made", command="cat kept"))["stdout"] == "me\n"
    forked = await d.call("sandbox_fork", sandbox="made", count=2)
    copies = [one["sandbox"] for one in forked["items"]]
    assert len(set(copies)) == 2, forked
    assert (await d.call("shell", sandbox=copies[0], command="cat kept"))["stdout"] == "me\n"
    refused = await d.call("egress_explain", sandbox="made", destination="example.com")
    assert (refused["mode"], refused["allowed"], refused["rule"]) == ("deny-all", False, "deny-all"), refused
    allowed = await d.call("egress_explain", destination="example.com")
    assert allowed["allowed"] is True and allowed["sandbox"] == own, allowed
    link = await d.call("preview", sandbox="made", port=8080)
    assert "atoll_token=" in link["url"] and link["port"] == 8080, link
    paused = await d.call("sandbox_pause", sandbox="made")
    assert paused["phase"] == "paused", paused
    resumed = await d.call("sandbox_resume", sandbox="made")
    assert resumed["phase"] == "running", resumed
    listed = await d.call("sandbox_list", limit=100)
    known = {one["sandbox"] for one in listed["items"]}
    assert {own, made["sandbox"], *copies} <= known, listed
    for sandbox in ["made", *copies]:
        assert (await d.call("sandbox_delete", sandbox=sandbox))["deleted"]
    await d.fails("shell", "sandbox_not_found", sandbox="made", command="true")


async def progress_and_cancelling(d: Driver, own: str):
    told = []

    async def progress(done, total, message):
        told.append((done, message))

    await d.client.call_tool("shell", {"command": "sleep 3"}, progress_callback=progress)
    assert told and told == sorted(told) and "run for" in told[0][1], told
    mark = f"sleep 4{time.time_ns() % 100_000}"
    call = asyncio.create_task(d.client.call_tool("shell", {"command": f"echo x > /tmp/cancel; {mark}"}))
    running = f"pgrep -f '^{mark}' >/dev/null && echo yes || echo no"
    while (await d.call("shell", command=running))["stdout"] != "yes\n":
        await asyncio.sleep(0.05)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError, MCPError):
        await call
    deadline = time.monotonic() + 30
    while (await d.call("shell", command=running))["stdout"] != "no\n":
        assert time.monotonic() < deadline, "a cancelled command runs on"
        await asyncio.sleep(0.05)


async def hostile(d: Driver):
    await d.fails("shell", "sandbox_not_found", sandbox=ABSENT, command="true")
    await d.fails("shell", "", sandbox="../../etc", command="true")
    await d.fails("shell", "command", command="   ")
    await d.fails("shell", "timeout_s", command="true", timeout_s=999_999)
    await d.fails("shell", "NUL", command="echo \0")
    await d.fails("file_read", "", path="")
    await d.fails("file_read", "", path="a" * 5000)
    await d.fails("file_read", "limit", path="/etc/passwd", limit=10**9)
    await d.fails("file_write", "base64", path="/tmp/x", content="?", encoding="base64")
    await d.fails("preview", "port", port=0)
    await d.fails("egress_explain", "destination", destination="http://a b/")
    await d.fails("rollback", "snapshot_not_found", snapshot=ABSENT)
    await d.fails("sandbox_fork", "", count=1000)
    result = await d.client.call_tool("shell", {"command": "true", "no_such": 1})
    assert result.is_error and "no_such" in result.content[0].text, result
    try:
        await d.client.call_tool("no_such_tool", {})
    except MCPError as error:
        assert error.code == -32602, error
    else:
        raise AssertionError("an unknown tool was called")


async def main(transport: str, era: str):
    async with connect(transport, era) as client:
        assert client.protocol_version == REVISION[era], client.protocol_version
        assert client.server_info is None or client.server_info.name == "atoll", client.server_info
        d = Driver(client)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == TOOLS, list(tools)
        for tool in tools.values():
            assert tool.output_schema and tool.annotations and tool.description, tool
        await commands(d)
        own = (await d.call("shell", command="true"))["sandbox"]
        await code(d)
        await files(d)
        await resources(d, own)
        await life(d, own)
        await progress_and_cancelling(d, own)
        await hostile(d)
        assert d.called == set(TOOLS), set(TOOLS) - d.called
        if transport == "http":
            await d.call("sandbox_delete")
            await d.fails("sandbox_delete", "no sandbox of its own")
        print(f"{transport} {era}: {len(d.called)} tools")


asyncio.run(main(sys.argv[1], sys.argv[2]))
