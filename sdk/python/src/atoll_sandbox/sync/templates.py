# Made from ../aio/templates.py by scripts/generate.py; do not edit.

"""Templates and the builds that make them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, List, Literal

from ..errors import InternalError
from ..generated.models import Build, BuildLine, BuildStatus, Collected, RegistryAuth, Template
from ..multipart import build_form
from ..results import Progress, typed
from ..settings import segment
from .files import TAR, FileData, as_content
from .sandboxes import pages
from .transport import LONG_S, Transport, read_chunks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..generated.models import BuildOptions, TemplateOptions

OnProgress = Callable[[Progress], None]


class Templates:
    """Templates: the built-in ones, those of your tenant, and public ones."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> List[Template]:
        """Lists templates."""
        return [Template(item) for item in (self._transport.json("GET", "/v1/templates"))["items"]]

    def get(self, name: str) -> Template:
        """Returns a template: `name`, `name:tag` or an alias."""
        return Template(self._transport.json("GET", at(name)))

    def pull(
        self,
        image: str,
        *,
        platform: str | None = None,
        auth: RegistryAuth | None = None,
        on_progress: OnProgress | None = None,
    ) -> Template:
        """Pulls an image from a registry, which becomes a template with the same name."""
        given = {"platform": platform, "auth": auth}
        body = {"image": image, **{name: value for name, value in given.items() if value is not None}}
        return self._finish("/v1/templates/pull", body, on_progress)

    def push(
        self, name: str, image: str, *, auth: RegistryAuth | None = None, on_progress: OnProgress | None = None
    ) -> None:
        """Pushes a template to a registry."""
        body = {"image": image, **({"auth": auth} if auth else {})}
        for event in self._transport.events("POST", f"{at(name)}/push", body=body):
            if on_progress is not None and event.name != "done":
                on_progress(Progress(typed(event.json(), event.name)))

    def make(self, name: str, *, on_progress: OnProgress | None = None) -> Template:
        """Makes one of the built-in templates. Needs an admin key."""
        return self._finish(f"{at(name)}/make", None, on_progress)

    def _finish(self, path: str, body: Any, on_progress: OnProgress | None) -> Template:
        for event in self._transport.events("POST", path, body=body):
            if event.name == "done":
                return Template(event.json())
            if on_progress is not None:
                on_progress(Progress(typed(event.json(), event.name)))
        raise InternalError("the stream ended before the template was ready")

    def update(self, name: str, **options: Unpack[TemplateOptions]) -> Template:
        """Changes the start settings of a template, its aliases, or its visibility."""
        return Template(self._transport.json("PATCH", at(name), body=options))

    def delete(self, name: str) -> None:
        """Removes a template that no sandbox uses, or one of its tags (`name:tag`)."""
        self._transport.json("DELETE", at(name), timeout=LONG_S)

    def tag(self, name: str, tags: Sequence[str]) -> Template:
        """Makes tags point to the version of `name`, `name:tag` or `name@sha256:…`."""
        return Template(self._transport.json("POST", f"{at(name)}/tags", body={"tags": list(tags)}))

    def untag(self, name: str, tags: Sequence[str]) -> None:
        """Removes tags of a name. Existing sandboxes do not change."""
        self._transport.json("DELETE", f"{at(name)}/tags", query={"tags": ",".join(tags)})

    def import_archive(
        self, name: str, data: FileData, *, format: Literal["auto", "docker", "oci", "rootfs"] = "auto"
    ) -> Template:
        """Imports a template from an archive: of `docker save`, of an OCI layout, or of a root file system."""
        query = {"name": name, "format": format}
        content = as_content(data)
        answer = self._transport.json(
            "POST", "/v1/templates/import", query=query, content=content, headers=TAR, timeout=LONG_S
        )
        return Template(answer)

    def export(self, name: str, *, format: Literal["oci", "docker"] = "oci") -> Iterator[bytes]:
        """Exports a template as one archive, piece by piece."""
        with self._transport.stream("GET", f"{at(name)}/export", query={"format": format}) as response:
            for chunk in read_chunks(response):
                yield chunk

    def collect(self) -> Collected:
        """Removes files that no template, sandbox, snapshot or recent build uses. Needs an admin key."""
        return Collected(self._transport.json("POST", "/v1/templates/gc", timeout=LONG_S))


class Builds:
    """Builds of templates from the steps of a Dockerfile."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, template: str, *, context: bytes | None = None, **options: Unpack[BuildOptions]) -> Build:
        """Starts a build and returns at once. `context` is a tar archive with the files for `COPY`."""
        body = {"template": template, **options}
        if context is None:
            return Build(self._transport.json("POST", "/v1/builds", body=body))
        content, kind = build_form(json.dumps(body), context)
        headers = {"Content-Type": kind}
        answer = self._transport.json("POST", "/v1/builds", content=content, headers=headers, timeout=LONG_S)
        return Build(answer)

    def list(
        self, *, template: str | None = None, status: BuildStatus | None = None, page_size: int | None = None
    ) -> Iterator[Build]:
        """Gives builds, newest first."""
        query = {"template": template, "status": status, "limit": page_size}
        for build in pages(self._transport, "/v1/builds", query, Build):
            yield build

    def get(self, build: str) -> Build:
        """Returns a build."""
        return Build(self._transport.json("GET", f"/v1/builds/{segment(build)}"))

    def cancel(self, build: str) -> Build:
        """Cancels a build and returns when it no longer runs."""
        return Build(self._transport.json("DELETE", f"/v1/builds/{segment(build)}", timeout=LONG_S))

    def logs(self, build: str, *, follow: bool = True) -> Iterator[BuildLine]:
        """Gives the lines of the log; with `follow` until the build ends."""
        path = f"/v1/builds/{segment(build)}/logs"
        if not follow:
            for item in (self._transport.json("GET", path))["items"]:
                yield BuildLine(item)
            return
        for event in self._transport.events("GET", path, query={"follow": True}):
            if event.name == "line":
                yield BuildLine(event.json())

    def wait(self, build: str) -> Build:
        """Waits for the end of a build."""
        for _ in self.logs(build):
            pass
        return self.get(build)


def at(name: str) -> str:
    """The path of a template."""
    return f"/v1/templates/{segment(name)}"
