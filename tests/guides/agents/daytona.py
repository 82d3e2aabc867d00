"""The class of Daytona: a repository is cloned at the start into an image, and a port has a link."""

import asyncio
import os
from urllib.parse import urlsplit

import httpx
from sandbox_factory import DaytonaSandbox

os.environ["DAYTONA_SERVER_URL"] = os.environ["VENDOR_URL"] + "/daytona/api"
REPOSITORY = os.environ["GUIDE_REPOSITORY"]


async def main():
    sandbox = DaytonaSandbox()
    await sandbox.create(git_url=REPOSITORY, image="python:3.11-slim")
    assert (await sandbox.run_command("cat app/README")).stdout == "of the repository\n"
    await sandbox.run_command("cd app && (setsid python -m http.server 8000 >/dev/null 2>&1 </dev/null &)")
    url = await sandbox.get_preview_url(port=8000)
    link, vendor = urlsplit(url), urlsplit(os.environ["VENDOR_URL"])
    assert "8000" in (link.hostname or ""), url
    # Names of sandboxes have no address here.
    for _ in range(200):
        path = f"{vendor.scheme}://{vendor.netloc}{link.path or '/'}README" + (f"?{link.query}" if link.query else "")
        answer = httpx.get(path, headers={"host": link.netloc}, timeout=60)
        if answer.status_code == 200:
            break
        await asyncio.sleep(0.05)
    assert answer.text == "of the repository\n", answer.text
    await sandbox.delete()


asyncio.run(main())
