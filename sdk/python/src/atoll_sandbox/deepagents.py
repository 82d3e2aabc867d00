"""A sandbox as the backend of Deep Agents. Files are reached by native calls, so the sandbox needs no Python.

Needs the extra `deepagents`:

    from deepagents import create_deep_agent
    from atoll_sandbox import Sandbox
    from atoll_sandbox.deepagents import AtollBackend

    with Sandbox.create() as sandbox:
        agent = create_deep_agent(model=…, backend=AtollBackend(sandbox))
"""

from __future__ import annotations

import asyncio
import base64
import posixpath
from importlib.metadata import version
from typing import Any, Literal

from .deepagents_files import MAX_BINARY_BYTES, glob_query, is_shown, looks_binary, window
from .errors import AtollError, NotFoundError
from .extras import missing_extra
from .generated.models import Entry
from .sync.sandbox import Sandbox

try:
    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as cause:
    raise missing_extra("deepagents", cause) from cause

# LIMIT: a glob looks at each directory that has a match; more of them take seconds.
MAX_GLOB_DIRECTORIES = 500
DEFAULT_TIMEOUT_S = 30 * 60

Contract = Literal["0.6", "0.7"]


def installed_contract() -> Contract:
    """Before 0.7, `write` refused to overwrite, and `glob` gave relative paths and directories too."""
    major, minor = version("deepagents").split(".")[:2]
    return "0.6" if (int(major), int(minor)) < (0, 7) else "0.7"


def file_error(error: AtollError) -> str:
    """The word of Deep Agents for an error of a file, or its text."""
    if isinstance(error, NotFoundError):
        return "file_not_found"
    for words, name in (("permission denied", "permission_denied"), ("is a directory", "is_directory")):
        if words in error.message:
            return name
    return "invalid_path" if error.code == "invalid_argument" else str(error)


class AtollBackend(BaseSandbox):
    """A sandbox as a backend. It does not own the sandbox: who made it deletes it.

    `timeout` is the time limit of commands that have none of their own; 0 is no limit.
    """

    def __init__(
        self, sandbox: Sandbox, *, timeout: int = DEFAULT_TIMEOUT_S, contract: Contract | None = None
    ) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._contract: Contract = contract or installed_contract()

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command of the shell. Both streams are in the output, in their order."""
        limit = self._timeout if timeout is None else timeout
        done = self._sandbox.commands.run(f"exec 2>&1\n{command}", timeout_s=limit or None)
        told = f"\n[the command was ended after {limit} s]" if done.timed_out else ""
        return ExecuteResponse(output=done.output + told, exit_code=done.exit_code, truncated=done.truncated)

    def ls(self, path: str) -> LsResult:
        """Lists a directory."""
        if not path.startswith("/"):
            return LsResult(error=f"'{path}' is not an absolute path")
        try:
            return LsResult(entries=[file_info(entry) for entry in self._sandbox.files.list(path)])
        except AtollError as error:
            return LsResult(error=f"Cannot list '{path}': {file_error(error)}")

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Reads lines of a text file, or a binary file as base64."""
        if not file_path.startswith("/"):
            return ReadResult(error=f"File '{file_path}': invalid_path")
        try:
            files = self._sandbox.files
            if looks_binary(file_path) and files.stat(file_path).size > MAX_BINARY_BYTES:
                why = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
                return ReadResult(error=f"File '{file_path}': {why}")
            raw = files.read(file_path)
        except AtollError as error:
            return ReadResult(error=f"File '{file_path}': {file_error(error)}")
        text = None if looks_binary(file_path) else decoded(raw)
        if raw and text is None:
            return ReadResult(file_data=file_data(base64.b64encode(raw).decode(), "base64"))
        return read_result(file_path, text or "", offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a whole text file."""
        if self._contract == "0.6" and self._exists(file_path):
            return WriteResult(error=f"File '{file_path}' already exists")
        failed = self.upload_files([(file_path, content.encode())])[0].error
        if failed is not None:
            return WriteResult(error=f"Failed to write file '{file_path}': {failed}")
        return WriteResult(path=file_path)

    def _exists(self, path: str) -> bool:
        try:
            return self._sandbox.files.exists(path)
        except AtollError:
            return False

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """Replaces exact text. In a file with CRLF, text with LF is found too."""
        variants = [(old_string, new_string)]
        if "\n" in old_string and "\r" not in old_string:
            variants.append((old_string.replace("\n", "\r\n"), new_string.replace("\n", "\r\n")))
        message = ""
        for find, replace in variants:
            try:
                edits = self._sandbox.files.edit(file_path, {"find": find, "replace": replace, "all": replace_all})
                return EditResult(path=file_path, occurrences=edits.replacements)
            except AtollError as error:
                message = edit_error(error, file_path, old_string)
                if "does not contain" not in error.message:
                    break
        return EditResult(error=message)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file, or a directory recursively."""
        try:
            self._sandbox.files.remove(file_path)
        except NotFoundError:
            return DeleteResult(error=f"Error: '{file_path}' not found")
        except AtollError as error:
            return DeleteResult(error=f"Error deleting file '{file_path}': {error}")
        return DeleteResult(path=file_path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Finds lines that contain a text."""
        excluded = [name for name in (".git",) if posixpath.basename((path or "").rstrip("/")) != name]
        try:
            found = self._sandbox.files.grep(
                pattern, path, literal=True, include=[glob] if glob else [], exclude=excluded
            )
        except AtollError as error:
            return GrepResult(error=f"Cannot search '{path}': {error.message}")
        matches = found.items if max_count is None else found.items[:max_count]
        truncated = found.truncated or len(matches) < len(found.items)
        shown: Any = [{"path": match.path, "line": match.line, "text": match.text} for match in matches]
        return GrepResult(matches=shown, truncated=truncated) if self._contract == "0.7" else GrepResult(matches=shown)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Finds files by a glob."""
        root = "/" + (path or "/").strip("/")
        if ".." in pattern.split("/"):
            return GlobResult(error=f"Pattern '{pattern}' must not contain '..'")
        top_only = self._contract == "0.6"
        try:
            found = self._sandbox.files.search(glob_query(pattern, root, top_only=top_only), root)
            names = [name for name in found.items if is_shown(name, pattern, root)]
            entries, skipped = self._entries(names)
        except AtollError as error:
            return GlobResult(error=f"Cannot search '{root}': {error.message}")
        if self._contract == "0.6":
            relative: Any = [{**info, "path": posixpath.relpath(info["path"], root)} for info in entries]
            return GlobResult(matches=relative)
        truncated = found.truncated or skipped
        matches: Any = [info for info in entries if not info["is_dir"]]
        return GlobResult(matches=matches, truncated=truncated, truncation_reason="budget" if truncated else None)

    def _entries(self, names: list[str]) -> tuple[list[Any], bool]:
        """What the names are; whether some were left out. A name that is neither file nor directory is left out too."""
        parents = sorted({posixpath.dirname(name) for name in names})
        known: dict[str, Entry] = {}
        for parent in parents[:MAX_GLOB_DIRECTORIES]:
            known.update((entry.path, entry) for entry in self._sandbox.files.list(parent))
        shown = [known[name] for name in names if name in known and known[name].kind in ("file", "directory")]
        return [file_info(entry) for entry in shown], len(parents) > MAX_GLOB_DIRECTORIES

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files; each has its own answer."""
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> Any:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.files.write(path, content)
        except AtollError as error:
            return file_error(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files; each has its own answer."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.files.read(path))
        except AtollError as error:
            return FileDownloadResponse(path=path, error=file_error(error))

    # The base class has asynchronous forms of its own, which run Python in the sandbox.

    async def als(self, path: str) -> LsResult:
        return await asyncio.to_thread(self.ls, path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await asyncio.to_thread(self.read, file_path, offset, limit)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await asyncio.to_thread(self.write, file_path, content)

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        return await asyncio.to_thread(self.edit, file_path, old_string, new_string, replace_all)

    async def adelete(self, file_path: str) -> DeleteResult:
        return await asyncio.to_thread(self.delete, file_path)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await asyncio.to_thread(self.grep, pattern, path, glob, max_count=max_count)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await asyncio.to_thread(self.glob, pattern, path)


# The types of Deep Agents for these need Python 3.11; here they are what they are at run time: plain dictionaries.


def file_data(content: str, encoding: str) -> Any:
    """The content of a file as Deep Agents has it."""
    return {"content": content, "encoding": encoding}


def file_info(entry: Entry) -> Any:
    """An entry as Deep Agents shows it."""
    moment = entry.modified_at.isoformat()
    return {"path": entry.path, "is_dir": entry.kind == "directory", "size": entry.size, "modified_at": moment}


def decoded(raw: bytes) -> str | None:
    """The text of a file; `None` if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def read_result(path: str, text: str, offset: int, limit: int) -> ReadResult:
    """The lines that were asked for."""
    if not text:
        return ReadResult(file_data=file_data("System reminder: File exists but has empty contents", "utf-8"))
    page = window(text, max(offset, 0), limit)
    if page is None:
        return ReadResult(file_data=file_data("", "utf-8"), no_lines_requested=True)
    if page.lines == 0:
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length ({page.total} lines)")
    end = page.start + page.lines
    return ReadResult(
        file_data=file_data(page.text, "utf-8"),
        total_lines=page.total,
        start_line=page.start + 1,
        end_line=end,
        next_offset=end if end < page.total else None,
    )


def edit_error(error: AtollError, path: str, old_string: str) -> str:
    """Why an edit was refused, in the words that models know."""
    if "does not contain" in error.message:
        return f"Error: String not found in file: '{old_string}'"
    if " times;" in error.message:
        return f"Error: String '{old_string}' appears multiple times. Use replace_all=True to replace all occurrences."
    if isinstance(error, NotFoundError):
        return f"Error: File '{path}' not found"
    return f"Error editing file '{path}': {error.message}"
