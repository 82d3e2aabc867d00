"""The factory at the vendor `e2b`, by its argument and by SANDBOX_PROVIDER."""

import asyncio
import os

from sandbox_factory import create_sandbox


async def main():
    sandbox = await create_sandbox(provider="e2b")
    sandbox_id = await sandbox.create(template="python-data-science")
    assert isinstance(sandbox_id, str) and sandbox_id
    installed = await sandbox.run_command("pip install --no-index --find-links /nowhere nothing")
    assert installed.exit_code == 1, installed
    await sandbox.write_file("/workspace/app.py", "open('/workspace/output.txt', 'w').write('made by python')")
    assert (await sandbox.run_command("python app.py")).exit_code == 0
    assert await sandbox.read_file("/workspace/output.txt") == "made by python"
    assert "8000" in await sandbox.get_preview_url(port=8000)
    await sandbox.delete()



async def by_name():
    os.environ["SANDBOX_PROVIDER"], os.environ["E2B_TIMEOUT"] = "e2b", "900"
    async with await create_sandbox() as sandbox:
        await sandbox.create()
        assert (sandbox.sandbox.info.provider, sandbox.sandbox.info.timeout_s) == ("e2b", 900)


asyncio.run(main())
asyncio.run(by_name())
