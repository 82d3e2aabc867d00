"""An MCP client over HTTP that goes away, with its own sandbox, one that a tool made, and a fork."""

import os
import signal

import httpx

api = httpx.Client(base_url=os.environ["ATOLL_URL"], headers={"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}, timeout=60)
accept = {"Accept": "application/json, text/event-stream"}
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "guide", "version": "1"}}
begun = api.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, headers=accept)
session = {**accept, "mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
for tool, arguments in (("shell", {"command": "true"}), ("sandbox_fork", {}), ("sandbox_create", {})):
    call = {"name": tool, "arguments": arguments}
    called = api.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}, headers=session)
    assert called.status_code == 200 and '"isError":true' not in called.text, called.text
os.kill(os.getpid(), signal.SIGKILL)
