"""The local sandbox is found at SANDBOX_HOST and SANDBOX_PORT."""

import asyncio
import os
from urllib.parse import urlsplit

from agent_infra_sandbox import SandboxSession

server = urlsplit(os.environ.pop("ATOLL_URL"))
os.environ["SANDBOX_HOST"], os.environ["SANDBOX_PORT"] = server.hostname or "", str(server.port)


async def main():
    async with await SandboxSession.create(session_id="local") as session:
        assert session.sandbox.phase == "running"


asyncio.run(main())
