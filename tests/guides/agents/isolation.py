"""Two sessions have two workspaces, and the common exceptions have names."""

import asyncio

from agent_infra_sandbox import SandboxConnectionError, SandboxError, SandboxSession, SandboxTimeoutError

assert issubclass(SandboxConnectionError, SandboxError) and issubclass(SandboxTimeoutError, SandboxError)


async def main():
    async with await SandboxSession.create(session_id="user-1") as one:
        async with await SandboxSession.create(session_id="user-2") as two:
            mine, theirs = ({t.name: t for t in session.get_tools()} for session in (one, two))
            await mine["file_write"].ainvoke({"file": "secret.txt", "content": "of user 1"})
            assert "no such file" in await theirs["file_read"].ainvoke({"file": "secret.txt"})
            assert (await mine["file_read"].ainvoke({"file": "secret.txt"}))["content"] == "of user 1"


asyncio.run(main())
