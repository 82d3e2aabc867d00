"""The form of a build with files: the request first, then the archive."""

from __future__ import annotations

import uuid


def build_form(spec: str, context: bytes) -> tuple[bytes, str]:
    """The body and its content type."""
    boundary = uuid.uuid4().hex
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\nContent-Type: application/json\r\n\r\n{spec}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="context"; filename="context.tar"\r\n'
        "Content-Type: application/x-tar\r\n\r\n"
    )
    return head.encode() + context + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
