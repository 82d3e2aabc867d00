"""Git in a sandbox. `path` is the directory of the repository; the sandbox's working directory if it is not given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..generated.models import (
    GitBranches,
    GitCommit,
    GitCommitted,
    GitCredentials,
    GitRemote,
    GitResetMode,
    GitResult,
    GitStatus,
)
from ..settings import segment
from .transport import AsyncTransport

# The server ends a call to another repository after 30 minutes, a local one after 2.
REMOTE_S = 1830.0
LOCAL_S = 150.0


class Git:
    """Git of one sandbox. Credentials are used for one call and stored nowhere."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/git"

    async def _post(self, endpoint: str, body: dict[str, Any], timeout: float = LOCAL_S) -> Any:
        given = {key: value for key, value in body.items() if value is not None}
        return await self._transport.json("POST", f"{self._path}/{endpoint}", body=given, timeout=timeout)

    async def _get(self, endpoint: str, **query: Any) -> Any:
        return await self._transport.json("GET", f"{self._path}/{endpoint}", query=query, timeout=LOCAL_S)

    async def clone(
        self,
        url: str,
        path: str,
        *,
        branch: str | None = None,
        commit: str | None = None,
        depth: int | None = None,
        credentials: GitCredentials | None = None,
    ) -> GitResult:
        """Clones a repository into a new directory."""
        body = {"url": url, "path": path, "branch": branch, "commit": commit, "depth": depth, "credentials": credentials}
        return GitResult(await self._post("clone", body, REMOTE_S))

    async def init(self, path: str, *, branch: str | None = None, bare: bool = False) -> GitResult:
        """Creates an empty repository."""
        return GitResult(await self._post("init", {"path": path, "branch": branch, "bare": bare}))

    async def status(self, path: str | None = None) -> GitStatus:
        """Returns the branch and the files that differ from the last commit."""
        return GitStatus(await self._get("status", path=path))

    async def add(self, files: Sequence[str], path: str | None = None) -> GitResult:
        """Stages files; `.` stages everything."""
        return GitResult(await self._post("add", {"files": list(files), "path": path}))

    async def commit(
        self,
        message: str,
        path: str | None = None,
        *,
        author: str | None = None,
        email: str | None = None,
        allow_empty: bool = False,
    ) -> GitCommitted:
        """Commits what is staged."""
        body = {"message": message, "path": path, "author": author, "email": email, "allow_empty": allow_empty}
        return GitCommitted(await self._post("commit", body))

    async def push(
        self,
        path: str | None = None,
        *,
        remote: str | None = None,
        branch: str | None = None,
        set_upstream: bool = False,
        credentials: GitCredentials | None = None,
    ) -> GitResult:
        """Pushes commits to a remote."""
        body = {"path": path, "remote": remote, "branch": branch, "credentials": credentials}
        return GitResult(await self._post("push", {**body, "set_upstream": set_upstream}, REMOTE_S))

    async def pull(
        self,
        path: str | None = None,
        *,
        remote: str | None = None,
        branch: str | None = None,
        rebase: bool = False,
        credentials: GitCredentials | None = None,
    ) -> GitResult:
        """Fetches commits from a remote and merges them, or rebases."""
        body = {"path": path, "remote": remote, "branch": branch, "credentials": credentials}
        return GitResult(await self._post("pull", {**body, "rebase": rebase}, REMOTE_S))

    async def branches(self, path: str | None = None) -> GitBranches:
        """Lists the local branches."""
        return GitBranches(await self._get("branches", path=path))

    async def create_branch(
        self, name: str, path: str | None = None, *, base: str | None = None, checkout: bool = False
    ) -> GitResult:
        """Creates a branch."""
        body = {"name": name, "path": path, "base": base, "checkout": checkout}
        return GitResult(await self._post("branches", body))

    async def delete_branch(self, name: str, path: str | None = None, *, force: bool = False) -> None:
        """Deletes a local branch."""
        query = {"path": path, "force": force}
        await self._transport.json("DELETE", f"{self._path}/branches/{segment(name)}", query=query)

    async def checkout(self, target: str, path: str | None = None) -> GitResult:
        """Checks out a branch, a tag or a commit."""
        return GitResult(await self._post("checkout", {"target": target, "path": path}))

    async def log(
        self, path: str | None = None, *, limit: int | None = None, since: str | None = None, until: str | None = None
    ) -> list[GitCommit]:
        """Returns the commits of the current branch, newest first."""
        answer = await self._get("log", path=path, limit=limit, since=since, until=until)
        return [GitCommit(item) for item in answer["items"]]

    async def diff(
        self, path: str | None = None, *, staged: bool = False, target: str | None = None, context: int | None = None
    ) -> GitResult:
        """Returns the difference as a patch: of the working tree, of what is staged, or to a revision."""
        return GitResult(await self._get("diff", path=path, staged=staged, target=target, context=context))

    async def reset(
        self,
        path: str | None = None,
        *,
        files: Sequence[str] = (),
        mode: GitResetMode | None = None,
        target: str | None = None,
    ) -> GitResult:
        """Unstages files, or moves the branch to another commit."""
        body = {"path": path, "files": list(files), "mode": mode, "target": target}
        return GitResult(await self._post("reset", body))

    async def restore(
        self,
        files: Sequence[str],
        path: str | None = None,
        *,
        source: str | None = None,
        staged: bool = False,
        worktree: bool = False,
    ) -> GitResult:
        """Discards changes of files."""
        body = {"path": path, "source": source, "staged": staged, "worktree": worktree}
        return GitResult(await self._post("restore", {**body, "files": list(files)}))

    async def remotes(self, path: str | None = None) -> list[GitRemote]:
        """Lists the remotes."""
        return [GitRemote(item) for item in (await self._get("remotes", path=path))["items"]]

    async def add_remote(self, name: str, url: str, path: str | None = None, *, overwrite: bool = False) -> GitResult:
        """Adds a remote. Credentials in its address are removed."""
        body = {"name": name, "url": url, "path": path, "overwrite": overwrite}
        return GitResult(await self._post("remotes", body))
