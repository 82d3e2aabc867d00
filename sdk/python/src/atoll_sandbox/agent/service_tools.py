"""Tools for the browser, for MCP servers inside the sandbox, and about the workspace itself."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from ..errors import AtollError, InvalidError, NotFoundError, UnavailableError, UnsupportedError
from ..results import CommandExit, Output
from .workspace import Workspace, failed

# Debian's wrapper needs /etc/chromium.d, which the template `host` does not show.
BROWSERS = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER_HINT = "use a template or an image that has Chromium"
BROWSER_S = 60.0
MAX_PAGE = 100_000
MCP_FILE = ".mcp.json"
MCP_S = 60.0
MCP_VERSION = "2025-06-18"

Server = Annotated[str, "Name of the MCP server"]


class ServiceTools:
    """Tools for services inside the sandbox. Every answer is a JSON object."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def browser_info(self) -> dict[str, Any]:
        """Show which browser the sandbox has."""
        program = self._browser()
        said = self._workspace.run([program, "--version"], timeout_s=BROWSER_S)
        return {"browser": program, "version": said.output.strip()}

    def browser_open(self, url: Annotated[str, "Address of the page"]) -> dict[str, Any]:
        """Open a page in a browser inside the sandbox and return its HTML after scripts ran."""
        done = self._workspace.run([*self._headless(), "--dump-dom", "--", url], timeout_s=BROWSER_S)
        if not done.ok:
            raise UnavailableError(f"the browser failed: {done.output[-500:]}", code="browser_failed")
        return {"url": url, "html": done.stdout[:MAX_PAGE], "truncated": len(done.stdout) > MAX_PAGE}

    def browser_screenshot(
        self,
        url: Annotated[str, "Address of the page"],
        file: Annotated[str, "Where to save the picture"] = "screenshot.png",
        width: Annotated[int, "Width in pixels"] = 1280,
        height: Annotated[int, "Height in pixels"] = 800,
    ) -> dict[str, Any]:
        """Take a picture of a page and save it in the workspace."""
        path = self._workspace.path(file)
        options = [f"--screenshot={path}", f"--window-size={width},{height}"]
        self._workspace.run([*self._headless(), *options, "--", url], timeout_s=BROWSER_S)
        return {"url": url, "file": file, "bytes": self._workspace.sandbox.files.stat(path).size}

    def browser_action(
        self,
        action: Annotated[str, "open or screenshot"],
        url: Annotated[str, "Address of the page"],
    ) -> dict[str, Any]:
        """Do something in the browser. Pages are opened anew each time: open and screenshot are what there is."""
        if action == "open":
            return self.browser_open(url)
        if action == "screenshot":
            return self.browser_screenshot(url)
        self._browser()
        raise UnsupportedError(f"the action {action!r} is not supported", code="unsupported", hint="open, screenshot")

    def _browser(self) -> str:
        program = self._workspace.program(*BROWSERS)
        if program is None:
            raise UnsupportedError("the sandbox has no browser", code="tool_missing", hint=BROWSER_HINT)
        return program

    def _headless(self) -> list[str]:
        # The sandbox is the isolation; the browser's own needs namespaces that it does not get there.
        return [self._browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]

    def mcp_list_servers(self) -> dict[str, Any]:
        """List the MCP servers that .mcp.json in the workspace names."""
        return {"servers": sorted(self._mcp_servers())}

    def mcp_list_tools(self, server: Server) -> dict[str, Any]:
        """List the tools of an MCP server."""
        return {"server": server, "tools": self._mcp(server, "tools/list", {}).get("tools", [])}

    def mcp_execute(
        self,
        server: Server,
        tool: Annotated[str, "Name of the tool"],
        arguments: Annotated[dict[str, Any] | None, "Arguments of the tool"] = None,
    ) -> dict[str, Any]:
        """Call a tool of an MCP server."""
        return self._mcp(server, "tools/call", {"name": tool, "arguments": arguments or {}})

    def _mcp_servers(self) -> dict[str, Any]:
        path = self._workspace.path(MCP_FILE)
        if not self._workspace.sandbox.files.exists(path):
            return {}
        try:
            servers: dict[str, Any] = json.loads(self._workspace.sandbox.files.read(path))["mcpServers"]
            return servers
        except (ValueError, KeyError, TypeError) as cause:
            raise InvalidError(f"{MCP_FILE} has no mcpServers", code="invalid_argument", field=MCP_FILE) from cause

    def _mcp(self, server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Starts a server in the sandbox, greets it, sends one request, and ends it."""
        settings = self._mcp_servers().get(server)
        if settings is None or "command" not in settings:
            raise NotFoundError(f"{MCP_FILE} names no command for the server {server!r}", code="process_not_found")
        client = {"name": "atoll-sandbox", "version": "1"}
        greeting = {"protocolVersion": MCP_VERSION, "capabilities": {}, "clientInfo": client}
        messages = [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": method, "params": params},
        ]
        answer = self._mcp_answer(settings, messages)
        if "error" in answer:
            raise InvalidError(f"the MCP server {server!r} refused: {answer['error'].get('message')}", code="mcp_error")
        result: dict[str, Any] = answer["result"]
        return result

    def _mcp_answer(self, settings: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer to the last message. The server is ended when it has come, or in time."""
        argv = [settings["command"], *settings.get("args", [])]
        env = {**self._workspace.env, **settings.get("env", {})}
        end, rest = time.monotonic() + MCP_S, b""
        process = self._workspace.sandbox.commands.start(
            argv, cwd=self._workspace.root, env=env, open_stdin=True, timeout_s=MCP_S
        )
        with process:
            try:
                # A server that has already ended takes no input; its output then ends without an answer.
                failed(lambda: process.send_stdin("".join(json.dumps(message) + "\n" for message in messages)))
                for event in process.output():
                    if isinstance(event, CommandExit) or time.monotonic() > end:
                        break
                    if not isinstance(event, Output) or event.type != "stdout":
                        continue
                    *lines, rest = (rest + event.data).split(b"\n")
                    for line in lines:
                        answer: dict[str, Any] = json.loads(line) if line.strip() else {}
                        if answer.get("id") == messages[-1]["id"]:
                            return answer
            finally:
                failed(process.kill)
        raise UnsupportedError(f"the MCP server {argv[0]!r} gave no answer", code="mcp_error", hint="run it by hand")

    def workspace_info(self) -> dict[str, Any]:
        """Show where the workspace is and what the sandbox has."""
        info = self._workspace.sandbox.info
        limits = {"cpu": info.cpu, "memory_mib": info.memory_mib, "disk_mib": info.disk_mib}
        system = self._workspace.run("uname -sm").stdout.strip()
        names = {"workspace": self._workspace.root, "sandbox": info.id, "template": info.template, "user": info.user}
        return {**names, "system": system, "limits": limits}

    def workspace_health(self) -> dict[str, Any]:
        """Show whether the sandbox works, and how much of its limits is used."""
        try:
            phase = self._workspace.sandbox.refresh().phase
            works = self._workspace.run("echo ok", timeout_s=10).stdout == "ok\n"
            use = self._workspace.sandbox.metrics()
        except AtollError as error:
            return {"healthy": False, "problem": str(error)}
        used = {"cpu_pct": use.cpu_pct, "memory_bytes": use.memory_bytes, "disk_bytes": use.disk_bytes, "pids": use.pids}
        return {"healthy": works, "phase": phase, "use": used}
