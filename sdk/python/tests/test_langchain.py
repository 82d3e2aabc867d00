"""The tools of a session: all 36 names, the suites of langchain-tests, and an agent with a scripted model."""

from __future__ import annotations

import importlib
import json
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import agent_infra_sandbox
import pytest
from atoll_sandbox import Atoll, ConflictError, InvalidError, NotFoundError, Sandbox
from atoll_sandbox.agent.code_tools import CodeTools
from atoll_sandbox.agent.interactive import ShellState
from atoll_sandbox.agent.shells import TerminalShell
from atoll_sandbox.agent.toolset import json_schema
from atoll_sandbox.agent.workspace import Workspace
from atoll_sandbox.langchain import TOOL_NAMES, SandboxSession, WorkspaceError, sandbox_tools
from conftest import Server
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from scripted_models import ScriptedChatModel

FIRST_LIST = """file_read file_write file_delete file_list file_search shell_exec shell_interactive git_clone git_commit
git_push git_status python_exec pip_install http_request browser_open env_get env_set process_list"""
SECOND_LIST = """file_read file_write file_edit file_list file_find file_search shell_exec shell_view shell_write shell_wait
shell_kill python_execute javascript_execute browser_info browser_screenshot browser_action mcp_list_servers mcp_list_tools
mcp_execute grep glob workspace_info workspace_health"""

MCP_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    name = asked["method"]
    if name == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {}, "serverInfo": {"name": "t"}}
    elif name == "tools/list":
        result = {"tools": [{"name": "double", "inputSchema": {"type": "object"}}]}
    else:
        result = {"content": [{"type": "text", "text": str(2 * asked["params"]["arguments"]["n"])}], "isError": False}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


# A repository with one commit, to clone from and to push to.
SEED = """
set -e
git init -q --bare -b main /tmp/up
git clone -q /tmp/up /tmp/seed
cd /tmp/seed
git checkout -q -b main
touch a
git add a
git -c user.name=a -c user.email=a@b.test commit -qm a
git push -q origin main
"""


class Tools:
    """Calls tools by their names."""

    def __init__(self, tools: list[BaseTool]) -> None:
        self.all = {tool.name: tool for tool in tools}

    def __call__(self, tool: str, /, **arguments: Any) -> Any:
        return self.all[tool].invoke(arguments)


@pytest.fixture(scope="module")
def tools(box: Sandbox) -> Tools:
    return Tools(sandbox_tools(box))


def test_both_lists_are_there() -> None:
    wanted = set(FIRST_LIST.split()) | set(SECOND_LIST.split())
    assert len(wanted) == len(TOOL_NAMES) == 36 and wanted == set(TOOL_NAMES)


def test_files(tools: Tools) -> None:
    assert tools("file_write", file="src/a.py", content="x = 1\ny = 2\n") == {"file": "src/a.py", "bytes": 12}
    tools("file_write", file="src/a.py", content="z = 3\n", append=True)
    assert tools("file_read", file="src/a.py", start_line=1, end_line=2)["content"] == "y = 2\n"
    assert tools("file_edit", file="src/a.py", old_str="x = 1", new_str="x = 9")["replacements"] == 1
    assert tools("file_list", path="src")["entries"] == [{"path": "src/a.py", "kind": "file", "size": 18}]
    assert tools("file_find", glob="*.py")["files"] == ["src/a.py"] == tools("glob", pattern="*.py")["files"]
    match = {"file": "src/a.py", "line": 1, "text": "x = 9"}
    assert tools("file_search", file="src/a.py", regex="x = .")["matches"] == [match]
    assert tools("grep", pattern="X =", ignore_case=True, include="*.py")["matches"] == [match]
    assert tools("file_delete", file="src") == {"file": "src", "deleted": True}
    assert "no such file" in tools("file_read", file="src/a.py")


def test_relative_paths_cannot_leave_the_workspace(box: Sandbox, tools: Tools) -> None:
    workspace = Workspace(box)
    assert workspace.path("a/../b") == f"{workspace.root}/b"
    for path in ("..", "../x", "a/../../x", "./../workspace2/x"):
        with pytest.raises(WorkspaceError):
            workspace.path(path)
        assert "leads out of the workspace" in tools("file_write", file=path, content="")
    assert "cannot be removed" in tools("file_delete", file=".")
    assert tools("file_read", file="/etc/passwd")["total_lines"] > 0


def test_shells_keep_their_state(tools: Tools) -> None:
    done = tools("shell_exec", command="cd /tmp; x=5; echo out; echo err >&2; false")
    assert (done["status"], done["exit_code"], done["id"]) == ("completed", 1, "main")
    assert "out" in done["output"] and "err" in done["output"]
    assert tools("shell_exec", command="echo $x $PWD")["output"] == "5 /tmp\n"
    assert tools("shell_exec", command="pwd", id="other")["output"].endswith("/workspace\n")


def test_a_long_command_goes_on(tools: Tools) -> None:
    started = tools("shell_exec", command="echo begun; read line; echo got $line", id="long", timeout=0.3)
    assert started["status"] == "running"
    assert "still runs" in tools("shell_exec", command="echo", id="long")
    tools("shell_write", id="long", input="this")
    done = tools("shell_wait", id="long", seconds=30)
    assert (done["status"], done["exit_code"]) == ("completed", 0) and "got this" in done["output"]
    assert tools("shell_view", id="long")["output"] == done["output"]


def test_a_shell_that_ended_is_started_anew(tools: Tools) -> None:
    assert tools("shell_exec", command="cd /tmp; exit 3", id="ends")["exit_code"] == 3
    again = tools("shell_exec", command="pwd", id="ends")
    assert (again["exit_code"], again["output"]) == (0, "/workspace\n") and "new one" in again["note"]
    assert "note" not in tools("shell_exec", command="pwd", id="ends")


def test_a_shell_in_a_terminal_is_a_shell_too(box: Sandbox) -> None:
    # What providers without sessions get.
    shell = TerminalShell(box, "/tmp")

    def run(command: str, exports: str = "") -> ShellState:
        shell.start(command, exports)
        shell.wait(30)
        return shell.state()

    assert run("cd /etc; x=5; echo out; echo err >&2; false") == (1, "out\nerr\n", True)
    assert run("echo $x $PWD $y", "export y='6 7'") == (0, "5 /etc 6 7\n", True)
    assert run("printf %s " + "z" * 20_000).output == "z" * 20_000
    shell.start("read line; echo got $line", "")
    assert shell.is_busy()
    shell.write("this\n")
    shell.wait(30)
    assert shell.state() == (0, "got this\n", True)
    assert run("exit 3").exit_code == 3
    with pytest.raises(NotFoundError, match="has ended"):
        shell.start("true", "")


def test_a_program_has_a_terminal(tools: Tools) -> None:
    started = tools("shell_interactive", command="python3 -q")
    assert started["status"] == "running" and ">>>" in started["output"]
    assert "still runs" in tools("shell_interactive", command="cat")
    typed = tools("shell_write", id="interactive", input="6 * 7")
    assert "\n42\n" in typed["output"] and "\x1b" not in typed["output"]
    assert tools("shell_view", id="interactive")["output"] == typed["output"]
    tools("shell_write", id="interactive", input="exit(5)")
    assert tools("shell_wait", id="interactive", seconds=30)["exit_code"] == 5
    assert tools("shell_interactive", command="test -t 0 && test -t 1 && pwd")["output"] == "/workspace\n"
    assert tools("shell_interactive", command="cat")["status"] == "running"
    assert tools("shell_kill", id="interactive")["status"] == "terminated"
    assert "no command ran" in tools("shell_view", id="interactive")


def test_the_environment_is_shared(tools: Tools) -> None:
    tools("shell_exec", command="true")
    assert tools("env_set", name="WHO", value="an agent's")["value"] == "an agent's"
    assert tools("env_get", name="WHO")["value"] == "an agent's" and "PATH" in tools("env_get")["env"]
    assert tools("shell_exec", command="echo $WHO")["output"] == "an agent's\n"
    reading = tools("shell_exec", command="read line; echo got $line", id="reads", timeout=0.1)
    began = time.monotonic()
    assert tools("env_set", name="LATER", value="1") == {"name": "LATER", "value": "1"}
    assert time.monotonic() - began < 2 and reading["status"] == "running"
    tools("shell_write", id="reads", input="this")
    assert "got this" in tools("shell_wait", id="reads", seconds=30)["output"]
    assert tools("shell_exec", command="echo $LATER", id="reads")["output"] == "1\n"
    assert tools("python_exec", code="import os; os.environ['WHO']")["text"] == "\"an agent's\""
    assert "not a name" in tools("env_set", name="A B", value="")
    assert any("env" in row["command"] or row["pid"] == 1 for row in tools("process_list")["processes"])


def test_code(tools: Tools) -> None:
    assert tools("python_execute", code="n = 20\nn + 1")["text"] == "21"
    assert tools("python_exec", code="print(n * 2)")["stdout"] == "40\n"
    failed = tools("python_execute", code="1 / 0")
    assert failed["error"]["name"] == "ZeroDivisionError" and "1 / 0" in failed["traceback"]
    assert tools("javascript_execute", code="console.log([1, 2].map(n => n * 2).join())")["stdout"] == "2,4\n"


def test_pip_says_what_it_did(tools: Tools) -> None:
    done = tools("pip_install", packages="/nowhere/at-all")
    assert done["exit_code"] != 0 and "nowhere" in done["output"]
    several = tools("pip_install", packages=["/nowhere/at-all", "--pre"])
    assert several["packages"] == ["/nowhere/at-all", "--pre"] and several["exit_code"] != 0
    kinds = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    assert json_schema(CodeTools.pip_install.__get__(0))["properties"]["packages"]["anyOf"] == kinds


def test_git(tools: Tools, box: Sandbox) -> None:
    box.commands.run(SEED).check()
    assert tools("git_clone", url="/tmp/up")["path"] == "up"
    tools("file_write", file="up/b", content="b")
    status = tools("git_status", path="up")
    assert status["branch"] == "main" and [file["path"] for file in status["files"]] == ["b"]
    assert len(tools("git_commit", message="add b", path="up")["hash"]) >= 7
    tools("git_push", path="up")
    assert "add b" in box.commands.run("git -C /tmp/up log --oneline main").stdout


def test_requests_are_sent_from_inside(tools: Tools, box: Sandbox) -> None:
    box.commands.start("mkdir -p /tmp/web; cd /tmp/web; echo hello > page; python3 -m http.server 8123", detach=True)
    box.commands.run("for n in $(seq 200); do (: < /dev/tcp/127.0.0.1/8123) && break; sleep 0.05; done", timeout_s=60)
    got = tools("http_request", url="http://127.0.0.1:8123/page")
    assert (got["status"], got["body"]) == (200, "hello\n")
    assert tools("http_request", url="http://127.0.0.1:8123/page", method="POST", body="x")["status"] == 501
    assert "error" in tools("http_request", url="http://127.0.0.1:9/")


def test_mcp_servers_of_the_workspace(tools: Tools) -> None:
    assert tools("mcp_list_servers") == {"servers": []}
    servers = {"mcpServers": {"t": {"command": "python3", "args": ["server.py"]}, "bad": {"command": "true"}}}
    tools("file_write", file="server.py", content=MCP_SERVER)
    tools("file_write", file=".mcp.json", content=json.dumps(servers))
    assert tools("mcp_list_servers") == {"servers": ["bad", "t"]}
    assert [tool["name"] for tool in tools("mcp_list_tools", server="t")["tools"]] == ["double"]
    assert tools("mcp_execute", server="t", tool="double", arguments={"n": 21})["content"][0]["text"] == "42"
    assert "gave no answer" in tools("mcp_list_tools", server="bad")
    assert "names no command" in tools("mcp_list_tools", server="none")


def test_a_browser_that_is_not_there_is_a_clear_error(client: Atoll) -> None:
    with client.sandboxes.create("busybox") as small:
        tools = Tools(sandbox_tools(small))
        for name, arguments in (
            ("browser_info", {}),
            ("browser_open", {"url": "http://x/"}),
            ("browser_screenshot", {"url": "http://x/"}),
            ("browser_action", {"action": "click", "url": "http://x/"}),
        ):
            assert "the sandbox has no browser" in tools(name, **arguments)


def test_a_browser_opens_pages(client: Atoll) -> None:
    with client.sandboxes.create("host", memory_mib=1024, pids=1024) as big:
        if not big.commands.run("test -x /usr/lib/chromium/chromium").ok:
            pytest.skip("this machine has no Chromium, so the template host has none")
        tools = Tools(sandbox_tools(big))
        assert "hromium" in tools("browser_info")["version"]
        tools("file_write", file="p.html", content="<p id=p></p><script>p.textContent = 6 * 7</script>")
        page = "file:///workspace/p.html"
        assert ">42</p>" in tools("browser_open", url=page)["html"]
        assert tools("browser_action", action="screenshot", url=page)["bytes"] > 1000
        assert "not supported" in tools("browser_action", action="click", url=page)


def test_the_workspace_tells_about_itself(tools: Tools, box: Sandbox) -> None:
    info = tools("workspace_info")
    assert info["workspace"] == "/workspace" and info["sandbox"] == box.id and "Linux" in info["system"]
    assert tools("workspace_health")["healthy"] is True


def test_schemas_describe_every_parameter(box: Sandbox) -> None:
    for tool in sandbox_tools(box):
        properties = tool.args
        assert tool.description and len(tool.description) < 200
        assert all("description" in field or "anyOf" in field for field in properties.values()), tool.name
    with pytest.raises(InvalidError):
        sandbox_tools(box, ["nothing"])
    assert json_schema(lambda: None) == {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False
    }


async def test_a_session_is_a_sandbox_of_its_own(environment: Server, client: Atoll) -> None:
    name = f"sdk-{uuid.uuid4().hex}"
    async with agent_infra_sandbox.SandboxSession.create(session_id=name) as session:
        tools = {tool.name: tool for tool in session.get_tools()}
        assert len(tools) == 36
        assert await tools["file_write"].ainvoke({"file": "a.txt", "content": "hi"}) == {"file": "a.txt", "bytes": 2}
        assert (await tools["shell_exec"].ainvoke({"command": "cat a.txt"}))["output"] == "hi"
        async with agent_infra_sandbox.SandboxSession.create(session_id=f"{name}-2") as other:
            assert other.sandbox.id != session.sandbox.id
            assert not other.sandbox.files.exists("workspace/a.txt")
        sandbox = session.sandbox
        assert client.threads.get(name).thread == name
    assert sandbox.refresh().phase in ("deleting", "deleted")
    # Nothing of the session stays with the server.
    with pytest.raises(NotFoundError):
        client.threads.get(name)
    with pytest.raises(agent_infra_sandbox.SandboxNotFoundError):
        _ = session.sandbox


def test_a_kept_session_goes_on(environment: Server) -> None:
    name = f"sdk-{uuid.uuid4().hex}"
    with SandboxSession.create(session_id=name, keep=True) as first:
        first.sandbox.files.write("/workspace/kept", "yes")
        sandbox = first.sandbox
    assert sandbox.refresh().phase == "paused"
    with SandboxSession.create(session_id=name) as second:
        assert second.sandbox.id == sandbox.id
        assert second.sandbox.files.read_text("/workspace/kept") == "yes"


def test_the_address_of_the_earlier_system_is_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    monkeypatch.delenv("ATOLL_URL", raising=False)
    monkeypatch.setenv("ATOLL_API_KEY", server.api_key)
    monkeypatch.setenv("SANDBOX_HOST", host)
    monkeypatch.setenv("SANDBOX_PORT", port)
    with SandboxSession.create(session_id=f"sdk-{uuid.uuid4().hex}") as session:
        assert session.sandbox.phase == "running"


class TestFileWriteSuite(ToolsIntegrationTests):
    """The standard suite on one tool with parameters."""

    tool_name = "file_write"
    params: dict[str, Any] = {"file": "standard.txt", "content": "x"}
    _tool: Any = None

    @pytest.fixture(autouse=True)
    def _sandbox(self, box: Sandbox) -> Iterator[None]:
        type(self)._tool = sandbox_tools(box, [self.tool_name])[0]
        yield

    @property
    def tool_constructor(self) -> Any:
        return self._tool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return self.params


class TestShellExecSuite(TestFileWriteSuite):
    """The standard suite on the shell."""

    tool_name = "shell_exec"
    params: dict[str, Any] = {"command": "echo hi"}


class TestPythonExecuteSuite(TestFileWriteSuite):
    """The standard suite on code."""

    tool_name = "python_execute"
    params: dict[str, Any] = {"code": "1 + 1"}


class TestWorkspaceInfoSuite(TestFileWriteSuite):
    """The standard suite on a tool without parameters."""

    tool_name = "workspace_info"
    params: dict[str, Any] = {}


async def test_an_agent_solves_a_task(environment: Server) -> None:
    async with SandboxSession.create(session_id=f"sdk-{uuid.uuid4().hex}") as session:
        model = ScriptedChatModel(
            calls=[
                ("file_write", {"file": "sum.py", "content": "print(sum(range(10)))\n"}),
                ("file_read", {"file": "missing.py"}),
                ("file_edit", {"file": "sum.py", "old_str": "10", "new_str": "101"}),
                ("shell_exec", {"command": "python3 sum.py"}),
            ],
            last=lambda answer: f"The sum is {json.loads(answer)['output'].strip()}.",
        )
        agent = create_agent(model, session.get_tools())
        done = await agent.ainvoke({"messages": [HumanMessage("What is the sum of 1 to 100?")]})
    assert done["messages"][-1].content == "The sum is 5050."
    assert set(model.tool_names) == set(TOOL_NAMES)
    assert "no such file" in model.told[1]


def test_a_missing_extra_is_named(environment: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atoll_sandbox.langchain", None)
    with SandboxSession.create(session_id=f"sdk-{uuid.uuid4().hex}") as session:
        assert len(session.tools()) == 36
        with pytest.raises(agent_infra_sandbox.SandboxUnsupportedError, match="langchain-core"):
            session.get_tools()


@pytest.mark.parametrize(("extra", "package"), [("langchain", "langchain_core.tools"), ("deepagents", "deepagents.backends.protocol")])
def test_importing_a_module_without_its_extra_says_which(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"atoll_sandbox.{extra}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'atoll-sandbox\[{extra}\]'"):
        importlib.import_module(f"atoll_sandbox.{extra}")


def test_errors_have_their_common_names() -> None:
    assert issubclass(agent_infra_sandbox.SandboxNotFoundError, agent_infra_sandbox.SandboxError)
    assert issubclass(ConflictError, agent_infra_sandbox.SandboxError)
    assert agent_infra_sandbox.SandboxNotFoundError is NotFoundError
