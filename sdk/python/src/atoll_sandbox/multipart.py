"""Forms of several parts: a build with its files, and a file for Daytona's toolbox."""

from __future__ import annotations

import uuid
from urllib.parse import quote


def build_form(spec: str, context: bytes) -> tuple[bytes, str]:
    """The request of a build first, then the archive: the body and its content type."""
    return form(
        f'name="spec"\r\nContent-Type: application/json\r\n\r\n{spec}'.encode(),
        b'name="context"; filename="context.tar"\r\nContent-Type: application/x-tar\r\n\r\n' + context,
    )


def file_form(path: str, content: bytes) -> tuple[bytes, str]:
    """One file for `bulk-upload`: its path first, then what is in it."""
    name = quote(path.rsplit("/", 1)[-1])
    return form(
        b'name="files[0].path"\r\n\r\n' + path.encode(),
        f'name="files[0].file"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode() + content,
    )


def form(*parts: bytes) -> tuple[bytes, str]:
    """The body of these parts and its content type."""
    boundary = uuid.uuid4().hex
    start = f"--{boundary}\r\nContent-Disposition: form-data; ".encode()
    body = b"".join(start + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"
