# Made from ../aio/files.py by scripts/generate.py; do not edit.

"""Files of a sandbox. A path is absolute, or relative to the sandbox's working directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, List, Protocol, Union, runtime_checkable

from ..errors import NotFoundError
from ..generated.models import ArchiveWritten, EditResult, Entry, GrepResult, SearchResult, TextEdit
from ..results import FileChange, typed
from .transport import LONG_S, Transport, read_chunks


@runtime_checkable
class BinaryFile(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


FileData = Union[str, bytes, BinaryFile, Iterable[bytes]]
TAR = {"Content-Type": "application/x-tar"}
BYTES = {"Content-Type": "application/octet-stream"}


# How much of an open file is read at once.
PIECE_BYTES = 1 << 20


def as_content(data: FileData) -> bytes | Iterable[bytes]:
    """What is sent: text as UTF-8, bytes as they are, an open file and an iterator piece by piece."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return pieces(data) if isinstance(data, BinaryFile) else data


def pieces(file: BinaryFile) -> Iterator[bytes]:
    """The content of an open file."""
    while piece := file.read(PIECE_BYTES):
        yield piece


def as_edit(edit: TextEdit | tuple[str, str]) -> TextEdit:
    """An edit as the API takes it."""
    return {"find": edit[0], "replace": edit[1]} if isinstance(edit, tuple) else edit


class Files:
    """Files of one sandbox."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/files"

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Reads a file, or a part of it."""
        headers: dict[str, str] = {}
        if offset or length is not None:
            if length == 0:
                return b""
            headers["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        answer = self._transport.request(
            "GET", self._path, query={"path": path}, headers=headers, timeout=self._transport.timeout
        )
        return answer.content

    def read_text(self, path: str, *, encoding: str = "utf-8") -> str:
        """Reads a file as text."""
        return (self.read(path)).decode(encoding)

    def read_stream(self, path: str) -> Iterator[bytes]:
        """Reads a file piece by piece."""
        with self._transport.stream("GET", self._path, query={"path": path}) as response:
            for chunk in read_chunks(response):
                yield chunk

    def write(self, path: str, data: FileData, *, mode: str | None = None, user: str | None = None) -> Entry:
        """Writes a whole file, which appears when every byte has arrived. Missing parent directories are created.

        `mode` has the permission bits in octal, such as `755`.
        """
        query = {"path": path, "mode": mode, "user": user}
        content = as_content(data)
        return Entry(
            self._transport.json("PUT", self._path, query=query, content=content, headers=BYTES, timeout=LONG_S)
        )

    def list(self, path: str = ".", *, depth: int = 1) -> List[Entry]:
        """Lists a directory, `depth` levels deep."""
        answer = self._transport.json("GET", f"{self._path}/list", query={"path": path, "depth": depth})
        return [Entry(item) for item in answer["items"]]

    def stat(self, path: str) -> Entry:
        """Returns the entry at a path. Links are not followed."""
        return Entry(self._transport.json("GET", f"{self._path}/stat", query={"path": path}))

    def exists(self, path: str) -> bool:
        """Whether there is something at a path."""
        try:
            self.stat(path)
        except NotFoundError as error:
            if error.code != "file_not_found":
                raise
            return False
        return True

    def mkdir(self, path: str) -> Entry:
        """Creates a directory and its parents."""
        return Entry(self._transport.json("POST", f"{self._path}/mkdir", body={"path": path}))

    def move(self, source: str, destination: str) -> Entry:
        """Moves or renames; a file at the destination is replaced."""
        body = {"from": source, "to": destination}
        return Entry(self._transport.json("POST", f"{self._path}/move", body=body))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory recursively."""
        self._transport.json("DELETE", self._path, query={"path": path})

    def edit(self, path: str, *edits: TextEdit | tuple[str, str]) -> EditResult:
        """Replaces exact text: pairs (find, replace), or objects with `all`. Either all edits are made or none."""
        body = {"path": path, "edits": [as_edit(edit) for edit in edits]}
        return EditResult(self._transport.json("POST", f"{self._path}/edit", body=body))

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> GrepResult:
        """Finds lines of text files that match a regular expression, or contain a text with `literal`."""
        body: dict[str, Any] = {"pattern": pattern, "literal": literal, "ignore_case": ignore_case}
        body.update(include=list(include), exclude=list(exclude), **({"path": path} if path else {}))
        return GrepResult(self._transport.json("POST", f"{self._path}/grep", body=body, idempotent=True))

    def search(self, pattern: str, path: str | None = None, *, exclude: Sequence[str] = ()) -> SearchResult:
        """Finds files by a glob: `*`, `?`, `[a-z]`, `{a,b}` and `**`."""
        body: dict[str, Any] = {"pattern": pattern, "exclude": list(exclude), **({"path": path} if path else {})}
        return SearchResult(self._transport.json("POST", f"{self._path}/search", body=body, idempotent=True))

    def watch(self, path: str, *, recursive: bool = False) -> Iterator[FileChange]:
        """Follows the changes of a directory until the iteration is left."""
        query = {"path": path, "recursive": recursive}
        for event in self._transport.events("GET", f"{self._path}/watch", query=query):
            yield FileChange(typed(event.json(), event.name))

    def download_archive(self, path: str) -> Iterator[bytes]:
        """Reads a file or a directory as a tar archive, piece by piece."""
        with self._transport.stream("GET", f"{self._path}/archive", query={"path": path}) as response:
            for chunk in read_chunks(response):
                yield chunk

    def upload_archive(self, path: str, data: FileData) -> ArchiveWritten:
        """Unpacks a tar archive below a directory, which is created if missing."""
        content = as_content(data)
        answer = self._transport.json(
            "PUT", f"{self._path}/archive", query={"path": path}, content=content, headers=TAR, timeout=LONG_S
        )
        return ArchiveWritten(answer)
