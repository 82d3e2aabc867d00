"""An MCP client over stdio: `atoll mcp` is killed after its first call."""

import json
import os
import signal
import subprocess

server = subprocess.Popen([os.environ["ATOLL_BIN"], "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "guide", "version": "1"}}
for message in (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "shell", "arguments": {"command": "true"}}},
):
    server.stdin.write(json.dumps(message) + "\n")
server.stdin.flush()
for line in server.stdout:
    answer = json.loads(line)
    if answer.get("id") == 2:
        assert not answer["result"].get("isError"), answer
        break
server.kill()
os.kill(os.getpid(), signal.SIGKILL)
