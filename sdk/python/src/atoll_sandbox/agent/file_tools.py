"""Tools for files and searches."""

from __future__ import annotations

import re
from typing import Annotated, Any

from ..errors import InvalidError
from .workspace import Workspace

# LIMIT: what a model can use of one answer.
MAX_MATCHES = 200

File = Annotated[str, "Path of the file, relative to the workspace"]
Folder = Annotated[str, "Directory, relative to the workspace"]


class FileTools:
    """Tools for files. Every answer is a JSON object."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files = workspace.sandbox.files

    def file_read(
        self,
        file: File,
        start_line: Annotated[int, "First line, from 0"] = 0,
        end_line: Annotated[int | None, "Line to stop before"] = None,
    ) -> dict[str, Any]:
        """Read a text file, or some lines of it."""
        text = self._files.read(self._workspace.path(file)).decode("utf-8", "replace")
        lines = text.splitlines(keepends=True)
        return {"file": file, "content": "".join(lines[start_line:end_line]), "total_lines": len(lines)}

    def file_write(
        self,
        file: File,
        content: Annotated[str, "The whole new content"],
        append: Annotated[bool, "Add to the end of the file instead"] = False,
    ) -> dict[str, Any]:
        """Write a text file. Missing directories are created."""
        path = self._workspace.path(file)
        before = self._files.read(path) if append and self._files.exists(path) else b""
        entry = self._files.write(path, before + content.encode())
        return {"file": file, "bytes": entry.size}

    def file_edit(
        self,
        file: File,
        old_str: Annotated[str, "Exact text to replace; it must occur once"],
        new_str: Annotated[str, "Text to put in its place"],
        replace_all: Annotated[bool, "Replace every occurrence"] = False,
    ) -> dict[str, Any]:
        """Replace exact text in a file."""
        edit = {"find": old_str, "replace": new_str, "all": replace_all}
        done = self._files.edit(self._workspace.path(file), edit)  # pyright: ignore[reportArgumentType]
        return {"file": file, "replacements": done.replacements, "diff": done.diff}

    def file_delete(self, file: Annotated[str, "File or directory to remove"]) -> dict[str, Any]:
        """Remove a file, or a directory with all its content."""
        path = self._workspace.path(file)
        if path == self._workspace.root:
            raise InvalidError("the workspace itself cannot be removed", code="invalid_argument", field="file")
        self._files.remove(path)
        return {"file": file, "deleted": True}

    def file_list(
        self, path: Folder = "", depth: Annotated[int, "Levels to go down"] = 1
    ) -> dict[str, Any]:
        """List a directory."""
        entries = self._files.list(self._workspace.path(path), depth=depth)
        shown = [{"path": self._shown(entry.path), "kind": entry.kind, "size": entry.size} for entry in entries]
        return {"path": path or ".", "entries": shown}

    def file_find(
        self, glob: Annotated[str, "Glob such as *.py or src/**/*.ts"], path: Folder = ""
    ) -> dict[str, Any]:
        """Find files by their name."""
        found = self._files.search(glob, self._workspace.path(path))
        return {"files": [self._shown(name) for name in found.items], "truncated": found.truncated}

    def file_search(
        self, file: File, regex: Annotated[str, "Regular expression"]
    ) -> dict[str, Any]:
        """Find lines of one file."""
        return self._matches(regex, file, None, False, False)

    def grep(
        self,
        pattern: Annotated[str, "Regular expression, or a text with literal"],
        path: Folder = "",
        include: Annotated[str | None, "Glob of the files to search"] = None,
        literal: Annotated[bool, "Take the pattern as plain text"] = False,
        ignore_case: Annotated[bool, "Ignore upper and lower case"] = False,
    ) -> dict[str, Any]:
        """Find lines in all files below a directory."""
        return self._matches(pattern, path, include, literal, ignore_case)

    def glob(self, pattern: Annotated[str, "Glob such as **/*.py"], path: Folder = "") -> dict[str, Any]:
        """Find files by a glob."""
        return self.file_find(pattern, path)

    def _matches(
        self, pattern: str, path: str, include: str | None, literal: bool, ignore_case: bool
    ) -> dict[str, Any]:
        found = self._files.grep(
            pattern,
            self._workspace.path(path),
            literal=literal,
            ignore_case=ignore_case,
            include=[include] if include else [],
        )
        shown = [{"file": self._shown(m.path), "line": m.line, "text": m.text} for m in found.items[:MAX_MATCHES]]
        return {"matches": shown, "truncated": found.truncated or len(found.items) > MAX_MATCHES}

    def _shown(self, path: str) -> str:
        return re.sub(f"^{re.escape(self._workspace.root)}/", "", path)
