"""Settings and requests of the Daytona client: where the server is, and what a create asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import AuthenticationError
from .settings import server_url

# The label in which Daytona keeps the language of a sandbox.
LANGUAGE_LABEL = "code-toolbox-language"
# States that a sandbox leaves by itself on its way to `started`, `stopped` or what it was before a resize.
PASSING = (
    "creating",
    "pending_build",
    "building_snapshot",
    "pulling_snapshot",
    "restoring",
    "resuming",
    "starting",
    "stopping",
    "resizing",
    "snapshotting",
    "archiving",
    "unknown",
)


@dataclass
class DaytonaConfig:
    """Which server, and as whom. What is not given is taken from the environment.

    `api_url`: `DAYTONA_API_URL`, then `DAYTONA_SERVER_URL`; without both it is the Atoll server of `ATOLL_URL`, which has
    Daytona's API below `/daytona/api`. `api_key`: `DAYTONA_API_KEY`, and for the server of `ATOLL_URL` also
    `ATOLL_API_KEY`. `target`: `DAYTONA_TARGET`.
    """

    api_key: str | None = None
    api_url: str | None = None
    target: str | None = None

    def address(self) -> str:
        """The address of the API, without a slash at the end."""
        named = self.api_url or os.environ.get("DAYTONA_API_URL") or os.environ.get("DAYTONA_SERVER_URL")
        return server_url(named) if named else f"{server_url(None)}/daytona/api"

    def key(self) -> str:
        """The key. That of Atoll is never sent to another server than the one of `ATOLL_URL`."""
        chosen = self.api_key or os.environ.get("DAYTONA_API_KEY")
        if not chosen and self.address() == f"{server_url(None)}/daytona/api":
            chosen = os.environ.get("ATOLL_API_KEY")
        if not chosen:
            hint = "pass DaytonaConfig(api_key=…) or set DAYTONA_API_KEY; at Atoll it is a key of `atoll key create`"
            raise AuthenticationError("missing API key", code="missing_key", hint=hint, field="api_key")
        return chosen

    def region(self) -> str | None:
        """The target of new sandboxes."""
        return self.target or os.environ.get("DAYTONA_TARGET") or None


@dataclass
class CreateSandboxParams:
    """What a new sandbox has. Sizes are cores and GiB, intervals are minutes."""

    language: str | None = None
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    disk: float | None = None
    name: str | None = None
    snapshot: str | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    volumes: Sequence[Mapping[str, str]] = ()
    public: bool | None = None
    network_block_all: bool | None = None
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    auto_stop_interval: int | None = None
    auto_archive_interval: int | None = None
    auto_delete_interval: int | None = None
    ttl_minutes: int | None = None
    user: str | None = None
    target: str | None = None


def create_body(params: CreateSandboxParams, target: str | None) -> dict[str, Any]:
    """The body of a create; absent fields are left out."""
    labels = {LANGUAGE_LABEL: params.language or "python", **params.labels}
    given = {
        "name": params.name,
        "snapshot": params.snapshot,
        "buildInfo": {"dockerfileContent": f"FROM {params.image}\n"} if params.image else None,
        "env": dict(params.env) or None,
        "labels": labels,
        "volumes": [volume_body(volume) for volume in params.volumes] or None,
        "public": params.public,
        "networkBlockAll": params.network_block_all,
        "networkAllowList": params.network_allow_list,
        "domainAllowList": params.domain_allow_list,
        "autoStopInterval": params.auto_stop_interval,
        "autoArchiveInterval": params.auto_archive_interval,
        "autoDeleteInterval": params.auto_delete_interval,
        "ttlMinutes": params.ttl_minutes,
        "user": params.user,
        "target": params.target or target,
        **size_body(cpu=params.cpu, memory=params.memory, gpu=params.gpu, disk=params.disk),
    }
    return {name: value for name, value in given.items() if value is not None}


def size_body(**sizes: float | None) -> dict[str, Any]:
    """Sizes as the API has them: `2.0` is 2. One that is not whole is sent as it is, and the server says so."""
    given = {name: value for name, value in sizes.items() if value is not None}
    return {name: int(value) if float(value).is_integer() else value for name, value in given.items()}


def volume_body(volume: Mapping[str, str]) -> dict[str, str]:
    """A mount: `volume_id`, `mount_path` and perhaps `subpath`, in either spelling."""
    names = {"volume_id": "volumeId", "mount_path": "mountPath"}
    return {names.get(name, name): value for name, value in volume.items()}
