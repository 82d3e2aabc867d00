"""A session at the vendors has the same workspace and programs."""

import asyncio

from agent_infra_sandbox import SandboxSession


async def main():
    for provider in ("daytona", "e2b"):
        async with await SandboxSession.create(session_id=f"at-{provider}", provider=provider) as session:
            tools = {t.name: t for t in session.get_tools()}
            assert session.sandbox.info.provider == provider
            await tools["file_write"].ainvoke({"file": "app.py", "content": "open('/workspace/output.txt', 'w').write('x')"})
            done = await tools["shell_exec"].ainvoke({"command": "python app.py && pip --version && pwd && cat output.txt"})
            assert done["exit_code"] == 0 and done["output"].endswith("/workspace\nx"), done
            repl = await tools["shell_interactive"].ainvoke({"command": "python -q"})
            assert ">>>" in repl["output"], repl
            typed = await tools["shell_write"].ainvoke({"id": "interactive", "input": "6 * 7"})
            assert "42" in typed["output"], typed
            assert (await tools["python_exec"].ainvoke({"code": "import os; os.getcwd()"}))["text"] == "'/workspace'"


asyncio.run(main())
