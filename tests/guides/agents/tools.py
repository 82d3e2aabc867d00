"""Every tool of both lists exists, and those that need nothing else work."""

import asyncio

from agent_infra_sandbox import SandboxSession

NAMES = """file_read file_write file_delete file_list file_search shell_exec shell_interactive git_clone git_commit git_push
git_status python_exec pip_install http_request browser_open env_get env_set process_list file_edit file_find shell_view
shell_write shell_wait shell_kill python_execute javascript_execute browser_info browser_screenshot browser_action
mcp_list_servers mcp_list_tools mcp_execute grep glob workspace_info workspace_health""".split()


async def main():
    async with await SandboxSession.create(session_id="tools", template="code-interpreter-slim") as session:
        tools = {t.name: t for t in session.get_tools()}
        assert set(NAMES) <= set(tools), set(NAMES) - set(tools)

        async def use(tool, /, **arguments):
            return await tools[tool].ainvoke(arguments)

        await use("file_write", file="a.txt", content="one\n")
        assert (await use("file_read", file="a.txt"))["content"] == "one\n"
        assert (await use("file_list"))["entries"][0]["path"] == "a.txt"
        assert (await use("file_search", file="a.txt", regex="o.e"))["matches"]
        assert (await use("file_edit", file="a.txt", old_str="one", new_str="two"))["replacements"] == 1
        assert (await use("grep", pattern="two"))["matches"] and (await use("glob", pattern="*.txt"))["files"] == ["a.txt"]
        assert (await use("file_find", glob="*.txt"))["files"] == ["a.txt"]
        assert (await use("shell_exec", command="exit 3"))["exit_code"] == 3
        assert "note" in await use("shell_exec", command="true")
        assert ">>>" in (await use("shell_interactive", command="python -q"))["output"]
        assert "42" in (await use("shell_write", id="interactive", input="6 * 7"))["output"]
        assert "42" in (await use("shell_view", id="interactive"))["output"]
        assert (await use("shell_kill", id="interactive"))["status"] == "terminated"
        assert (await use("shell_wait", id="main"))["status"] == "completed"
        assert (await use("python_exec", code="6 * 7"))["text"] == "42"
        assert (await use("python_execute", code="import os; os.getcwd()"))["text"] == "'/workspace'"
        assert (await use("javascript_execute", code="console.log(6 * 7)"))["stdout"] == "42\n"
        assert (await use("pip_install", packages=["/nowhere"]))["exit_code"] != 0
        await use("env_set", name="WHO", value="agent")
        assert (await use("env_get", name="WHO"))["value"] == "agent"
        assert (await use("process_list"))["processes"]
        made = await use("shell_exec", command="git init -q --bare -b main up && git clone -q up work && cd work && git checkout -q -b main")
        assert made["exit_code"] == 0, made
        await use("file_write", file="work/b", content="b")
        assert (await use("git_status", path="work"))["files"]
        assert (await use("git_commit", message="add b", path="work"))["hash"]
        await use("git_push", path="work", remote="origin", branch="main")
        assert (await use("git_clone", url="/workspace/up", path="again"))["path"] == "again"
        serving = await use("shell_exec", command="python -u -m http.server 8123", id="server", timeout=0.2)
        while "Serving" not in serving["output"]:
            serving = await use("shell_view", id="server")
        assert (await use("http_request", url="http://127.0.0.1:8123/"))["status"] == 200
        assert (await use("mcp_list_servers"))["servers"] == []
        for name in ("mcp_list_tools", "mcp_execute"):
            assert "names no command" in await use(name, server="none", **({"tool": "x"} if name == "mcp_execute" else {}))
        for name, arguments in (("browser_open", {"url": "http://x/"}), ("browser_info", {}), ("browser_screenshot", {"url": "http://x/"})):
            assert "no browser" in await use(name, **arguments)
        assert "no browser" in await use("browser_action", action="open", url="http://x/")
        assert (await use("workspace_info"))["workspace"] == "/workspace"
        assert (await use("workspace_health"))["healthy"]
        assert (await use("file_delete", file="a.txt"))["deleted"]


asyncio.run(main())
