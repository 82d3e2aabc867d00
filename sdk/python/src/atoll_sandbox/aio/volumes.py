"""Volumes: files that outlive sandboxes."""

from __future__ import annotations

from typing import Any, List

from ..generated.models import Volume, VolumeEntry
from ..settings import segment
from .files import BYTES, FileData, as_content
from .transport import LONG_S, AsyncTransport


class Volumes:
    """The volumes of your tenant, and their files. `mounts` of a create puts a volume into a sandbox."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        *,
        size_mib: int | None = None,
        read_only: bool = False,
        provider: str | None = None,
        folder: str | None = None,
    ) -> Volume:
        """Creates a volume."""
        given = {"size_mib": size_mib, "provider": provider, "folder": folder}
        body = {"name": name, "read_only": read_only, **{k: v for k, v in given.items() if v is not None}}
        return Volume(await self._transport.json("POST", "/v1/volumes", body=body, timeout=LONG_S))

    async def list(self) -> List[Volume]:
        """Lists volumes by name."""
        return [Volume(item) for item in (await self._transport.json("GET", "/v1/volumes"))["items"]]

    async def get(self, volume: str) -> Volume:
        """Returns a volume by its id or name."""
        return Volume(await self._transport.json("GET", at(volume)))

    async def update(self, volume: str, *, size_mib: int | None = None, read_only: bool | None = None) -> Volume:
        """Changes a volume, also while it is mounted."""
        given = {"size_mib": size_mib, "read_only": read_only}
        body = {name: value for name, value in given.items() if value is not None}
        return Volume(await self._transport.json("PATCH", at(volume), body=body))

    async def copy(self, volume: str, name: str) -> Volume:
        """Creates a volume with the current files of another volume; fast for any size."""
        return Volume(await self._transport.json("POST", f"{at(volume)}/copy", body={"name": name}, timeout=LONG_S))

    async def delete(self, volume: str) -> None:
        """Removes a volume with its files; a conflict while a sandbox mounts it."""
        await self._transport.json("DELETE", at(volume), timeout=LONG_S)

    async def entries(self, volume: str, path: str = "/", *, depth: int = 1) -> List[VolumeEntry]:
        """Lists a directory of a volume; with `depth=0` returns the entry itself."""
        query = {"path": path, "depth": depth}
        answer = await self._transport.json("GET", f"{at(volume)}/entries", query=query)
        return [VolumeEntry(item) for item in answer["items"]]

    async def read(self, volume: str, path: str) -> bytes:
        """Reads a file of a volume."""
        answer = await self._transport.request("GET", f"{at(volume)}/files", query={"path": path}, timeout=LONG_S)
        return answer.content

    async def write(
        self, volume: str, path: str, data: FileData, *, uid: int | None = None, gid: int | None = None, mode: str | None = None
    ) -> VolumeEntry:
        """Writes a whole file of a volume. Missing parent directories are created."""
        query: dict[str, Any] = {"path": path, "uid": uid, "gid": gid, "mode": mode}
        content = as_content(data)
        answer = await self._transport.json(
            "PUT", f"{at(volume)}/files", query=query, content=content, headers=BYTES, timeout=LONG_S
        )
        return VolumeEntry(answer)

    async def mkdir(self, volume: str, path: str) -> VolumeEntry:
        """Creates a directory of a volume and its parents."""
        return VolumeEntry(await self._transport.json("POST", f"{at(volume)}/folders", body={"path": path}))

    async def move(self, volume: str, source: str, destination: str) -> VolumeEntry:
        """Moves or renames an entry; a file at the destination is replaced."""
        body = {"from": source, "to": destination}
        return VolumeEntry(await self._transport.json("POST", f"{at(volume)}/move", body=body))

    async def remove(self, volume: str, path: str) -> None:
        """Removes a file of a volume, or a directory recursively."""
        await self._transport.json("DELETE", f"{at(volume)}/files", query={"path": path})


def at(volume: str) -> str:
    """The path of a volume."""
    return f"/v1/volumes/{segment(volume)}"
