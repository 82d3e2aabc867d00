"""Files against a real server."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest
from atoll_sandbox import ConflictError, InvalidError, NotFoundError, Sandbox


def test_read_and_write(box: Sandbox) -> None:
    entry = box.files.write("d/a.txt", "héllo\n", mode="750")
    assert (entry.path, entry.size, entry.mode, entry.kind) == ("/home/user/d/a.txt", 7, "0750", "file")
    assert box.files.read_text("d/a.txt") == "héllo\n"
    assert box.files.read("d/a.txt", offset=1, length=2) == "é".encode()
    assert box.files.read("d/a.txt", offset=3) == b"llo\n"
    assert box.files.read("d/a.txt", length=0) == b""
    assert box.files.stat("d/a.txt").modified_at.year >= 2025


def test_big_files_go_piece_by_piece(box: Sandbox) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(64):
            yield bytes([number]) * 65536

    assert box.files.write("big", pieces()).size == 64 * 65536
    assert sum(len(chunk) for chunk in box.files.read_stream("big")) == 64 * 65536
    box.files.write("open", io.BytesIO(b"from a file"))
    assert box.files.read("open") == b"from a file"


def test_directories(box: Sandbox) -> None:
    assert box.files.mkdir("tree/sub").kind == "directory"
    box.files.write("tree/sub/x", "x")
    assert sorted(entry.name for entry in box.files.list("tree", depth=2)) == ["sub", "x"]
    assert box.files.move("tree/sub/x", "tree/y").name == "y"
    assert box.files.exists("tree/y") and not box.files.exists("tree/sub/x")
    box.files.remove("tree")
    with pytest.raises(NotFoundError) as caught:
        box.files.list("tree")
    assert caught.value.code == "file_not_found"


def test_edit_is_all_or_nothing(box: Sandbox) -> None:
    box.files.write("code.py", "a = 1\nb = 1\n")
    assert box.files.edit("code.py", ("a = 1", "a = 2"), {"find": "1", "replace": "3", "all": True}).replacements == 2
    assert box.files.read_text("code.py") == "a = 2\nb = 3\n"
    with pytest.raises((InvalidError, ConflictError, NotFoundError)):
        box.files.edit("code.py", ("a = 2", "a = 9"), ("not there", "x"))
    assert box.files.read_text("code.py") == "a = 2\nb = 3\n"


def test_grep_and_search(box: Sandbox) -> None:
    box.files.write("s/one.py", "def f():\n    return 1\n")
    box.files.write("s/two.txt", "def g(): .\n")
    found = box.files.grep(r"def \w", "s")
    assert [(match.path[-7:], match.line) for match in found.items] == [("/one.py", 1), ("two.txt", 1)]
    assert len(box.files.grep(".", "s", literal=True).items) == 1
    assert len(box.files.grep("DEF", "s", ignore_case=True, include=["*.py"]).items) == 1
    assert [path[-6:] for path in box.files.search("*.py", "s").items] == ["one.py"]
    assert box.files.search("**", "s", exclude=["*.py"]).truncated is False


def test_archives_carry_directories(box: Sandbox) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("in/file")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    assert box.files.upload_archive("unpacked", packed.getvalue()).bytes == 3
    assert box.files.read("unpacked/in/file") == b"abc"
    back = io.BytesIO(b"".join(box.files.download_archive("unpacked")))
    with tarfile.open(fileobj=back) as archive:
        assert any(name.endswith("in/file") for name in archive.getnames())


def test_a_watch_sees_changes(box: Sandbox) -> None:
    box.files.mkdir("watched")
    process = box.commands.start("while :; do echo x > watched/new; sleep 0.05; done")
    try:
        changes = iter(box.files.watch("watched"))
        assert next(change.name for change in changes if change.type in ("create", "write")) == "new"
    finally:
        process.kill()
