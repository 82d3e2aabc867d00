"""Makes the workspace of agents in a sandbox."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..workspace_script import FALLBACK, PREPARE, WORKSPACE, owner_of

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

PREPARE_S = 60.0


async def prepare_workspace(sandbox: AsyncSandbox) -> str:
    """Makes `/workspace`, `python` and `pip` where they are missing, and returns the folder.

    The folder is `workspace` in the working directory instead where a sandbox is no file system of its own (`local`), and
    where its only user may make nothing in `/`.
    """
    if sandbox.info.isolation != "none" and await made(sandbox):
        return WORKSPACE
    folder = posixpath.join(sandbox.info.workdir, FALLBACK)
    await sandbox.commands.run(["mkdir", "-p", folder], timeout_s=PREPARE_S)
    return folder


async def made(sandbox: AsyncSandbox) -> bool:
    """Runs the script, as the user of the sandbox and then as root."""
    done = await sandbox.commands.run(["sh", "-c", PREPARE], timeout_s=PREPARE_S)
    if done.ok:
        return True
    try:
        owner = {"OWNER": owner_of(done.stdout)}
        done = await sandbox.commands.run(["sh", "-c", PREPARE], user="root", env=owner, timeout_s=PREPARE_S)
    except UnsupportedError:
        # The provider has one user only.
        return False
    return done.ok
