"""Tools for code, packages, git and requests."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Union

from ..errors import UnsupportedError
from ..generated.models import CodeLanguage
from ..results import Execution
from .workspace import Workspace

CODE_S = 120.0
INSTALL_S = 600.0
MAX_BODY = 100_000
# Who commits, if git does not know.
AUTHOR = ("Agent", "agent@localhost")

Repository = Annotated[str, "Directory of the repository, relative to the workspace"]
Seconds = Annotated[float, "Time limit in seconds"]


class CodeTools:
    """Tools for code, packages, git and requests. Every answer is a JSON object."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._git = workspace.sandbox.git
        self._contexts: dict[CodeLanguage, str] = {}

    def python_execute(self, code: Annotated[str, "Python code"], timeout: Seconds = CODE_S) -> dict[str, Any]:
        """Run Python code. What it defines stays for the next code; the value of the last expression is in `text`."""
        return self._execute(code, "python", timeout)

    def python_exec(self, code: Annotated[str, "Python code"], timeout: Seconds = CODE_S) -> dict[str, Any]:
        """Run Python code, as python_execute does."""
        return self._execute(code, "python", timeout)

    def javascript_execute(self, code: Annotated[str, "JavaScript code"], timeout: Seconds = CODE_S) -> dict[str, Any]:
        """Run JavaScript code in Node. What it defines stays for the next code."""
        return self._execute(code, "javascript", timeout)

    def _execute(self, code: str, language: CodeLanguage, timeout: float) -> dict[str, Any]:
        interpreter = self._workspace.sandbox.code
        if language not in self._contexts:
            made = interpreter.contexts.create(language=language, cwd=self._workspace.root)
            self._contexts[language] = made.id
        context = self._contexts[language]
        return code_answer(interpreter.run(code, context=context, env=self._workspace.env, timeout_s=timeout))

    def pip_install(
        self,
        packages: Annotated[Union[str, list[str]], "Packages, such as requests==2.32 numpy: a list, or separated by spaces"],
    ) -> dict[str, Any]:
        """Install Python packages in the sandbox."""
        names = packages.split() if isinstance(packages, str) else list(packages)
        argv = ["python3", "-m", "pip", "install", "--disable-pip-version-check", "--", *names]
        done = self._workspace.run(argv, timeout_s=INSTALL_S)
        return {"packages": names, "exit_code": done.exit_code, "output": done.output[-4000:]}

    def git_clone(
        self,
        url: Annotated[str, "Address of the repository"],
        path: Annotated[str, "New directory; the name of the repository without it"] = "",
        branch: Annotated[str | None, "Branch or tag"] = None,
    ) -> dict[str, Any]:
        """Clone a git repository into the workspace."""
        name = posixpath.basename(url.rstrip("/")).removesuffix(".git") or "repository"
        folder = path or name
        done = self._git.clone(url, self._workspace.path(folder), branch=branch)
        return {"path": folder, "output": done.output}

    def git_status(self, path: Repository = "") -> dict[str, Any]:
        """Show the branch and the changed files of a repository."""
        status = self._git.status(self._workspace.path(path))
        files = [{"path": f.path, "staged": f.staged, "worktree": f.worktree} for f in status.files]
        return {"branch": status.branch, "commit": status.commit, "files": files}

    def git_commit(
        self,
        message: Annotated[str, "Message of the commit"],
        path: Repository = "",
        files: Annotated[list[str] | None, "Files to stage; everything without it"] = None,
    ) -> dict[str, Any]:
        """Stage files and commit them."""
        folder = self._workspace.path(path)
        self._git.add(files or ["."], folder)
        known = self._workspace.run(["git", "config", "user.email"], cwd=folder).stdout.strip()
        author, email = (None, None) if known else AUTHOR
        done = self._git.commit(message, folder, author=author, email=email)
        return {"hash": done.hash, "output": done.output}

    def git_push(
        self,
        path: Repository = "",
        remote: Annotated[str | None, "Name of the remote"] = None,
        branch: Annotated[str | None, "Branch to push"] = None,
    ) -> dict[str, Any]:
        """Push commits to the remote repository."""
        done = self._git.push(self._workspace.path(path), remote=remote, branch=branch)
        return {"output": done.output}

    def http_request(
        self,
        url: Annotated[str, "Address"],
        method: Annotated[str, "Method"] = "GET",
        headers: Annotated[dict[str, str] | None, "Header fields"] = None,
        body: Annotated[str | None, "Body of the request"] = None,
        timeout: Seconds = 30.0,
    ) -> dict[str, Any]:
        """Send an HTTP request from inside the sandbox, where its network policy holds."""
        if self._workspace.program("curl") is None:
            hint = "use a template with curl, such as debian"
            raise UnsupportedError("the sandbox has no curl", code="tool_missing", hint=hint)
        fields = [part for name, value in (headers or {}).items() for part in ("-H", f"{name}: {value}")]
        sent = ["--data-binary", "@-"] if body is not None else []
        told = "\n%{http_code} %{content_type}"
        argv = ["curl", "-sS", "-L", "-X", method, "-m", str(timeout), *fields, *sent, "-w", told, "--", url]
        done = self._workspace.run(argv, stdin=body, timeout_s=timeout + 5)
        if not done.ok:
            return {"error": done.stderr.strip() or f"curl ended with code {done.exit_code}"}
        text, _, last = done.stdout.rpartition("\n")
        status, _, kind = last.partition(" ")
        return {"status": int(status), "content_type": kind, "body": text[:MAX_BODY], "truncated": len(text) > MAX_BODY}


def code_answer(done: Execution) -> dict[str, Any]:
    """What a model needs of an execution. Pictures are named, not shown: they would not fit."""
    pictures = [kind for result in done.results for kind in ("png", "jpeg", "svg", "pdf") if kind in result.raw]
    error = None if done.error is None else {"name": done.error.name, "value": done.error.value}
    answer: dict[str, Any] = {"text": done.text, "stdout": done.stdout, "stderr": done.stderr, "error": error}
    if done.error is not None:
        answer["traceback"] = done.error.traceback[-4000:]
    if pictures:
        answer["pictures"] = pictures
    if done.timed_out:
        answer["timed_out"] = True
    return answer
