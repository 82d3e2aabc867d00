"""A session as an asynchronous context, and its tools by name."""

import asyncio

from agent_infra_sandbox import SandboxSession


async def main():
    async with await SandboxSession.create(session_id="user-123") as session:
        tools = session.get_tools()
        by_name = {t.name: t for t in tools}
        await by_name["file_write"].ainvoke({"file": "app.py", "content": "print('hello from the sandbox')"})
        done = await by_name["shell_exec"].ainvoke({"command": "python app.py"})
        assert done["output"] == "hello from the sandbox\n", done
        await {t.name: t for t in tools}["file_write"].ainvoke({"file": "/workspace/output.txt", "content": "written"})
        done = await {t.name: t for t in tools}["shell_exec"].ainvoke({"command": "cat output.txt"})
        assert done["output"] == "written", done


asyncio.run(main())
