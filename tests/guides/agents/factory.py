"""The factory without a provider: every call of the unified interface."""

import asyncio

from sandbox_factory import create_sandbox


async def main():
    sandbox = await create_sandbox()
    sandbox_id = await sandbox.create(template="python-3.11", timeout=3600)
    assert isinstance(sandbox_id, str) and sandbox_id
    installed = await sandbox.run_command("pip install --no-index --find-links /nowhere nothing")
    assert installed.exit_code == 1, installed
    await sandbox.write_file("/workspace/app.py", "open('/workspace/output.txt', 'w').write('made by python')")
    assert (await sandbox.run_command("python app.py")).exit_code == 0
    assert await sandbox.read_file("/workspace/output.txt") == "made by python"
    assert "8000" in await sandbox.get_preview_url(port=8000)
    await sandbox.delete()


asyncio.run(main())
