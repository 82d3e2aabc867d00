"""The factory at the vendor `daytona`: through Atoll, and with DAYTONA_SERVER_URL by the protocol of that server."""

import asyncio
import os

from sandbox_factory import create_sandbox


async def main():
    sandbox = await create_sandbox(provider="daytona")
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
# The key DAYTONA_API_KEY and the target DAYTONA_TARGET are of that server; Atoll is not asked.
os.environ["DAYTONA_SERVER_URL"] = os.environ["VENDOR_URL"] + "/daytona/api"
os.environ["DAYTONA_TARGET"] = "eu"
os.environ["ATOLL_URL"] = "http://127.0.0.1:9"
asyncio.run(main())
