"""What belongs to the server and the tenant rather than to a sandbox: keys, secrets, providers."""

from __future__ import annotations

from typing import Any, List

from ..generated.models import CreatedKey, Key, Provider, ProviderSettings, ProviderTest, Scope, Secret
from ..settings import segment
from .transport import LONG_S, AsyncTransport


class Keys:
    """API keys. Most calls need an admin key."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, *, name: str | None = None, scope: Scope | None = None, tenant: str | None = None
    ) -> CreatedKey:
        """Creates a key and returns its secret, which is shown only once."""
        given = {"name": name, "scope": scope, "tenant": tenant}
        body = {field: value for field, value in given.items() if value is not None}
        return CreatedKey(await self._transport.json("POST", "/v1/keys", body=body))

    async def list(self) -> List[Key]:
        """Lists keys, without their secrets."""
        return [Key(item) for item in (await self._transport.json("GET", "/v1/keys"))["items"]]

    async def delete(self, key: str) -> None:
        """Deletes a key by its id; it stops working at once."""
        await self._transport.json("DELETE", f"/v1/keys/{segment(key)}")


class Secrets:
    """Values that network policies use by name; they never come into a sandbox."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, name: str, value: str) -> Secret:
        """Creates a secret. Policies refer to it as `{secret:NAME}`."""
        return Secret(await self._transport.json("POST", "/v1/secrets", body={"name": name, "value": value}))

    async def list(self) -> List[Secret]:
        """Lists secrets, without their values."""
        return [Secret(item) for item in (await self._transport.json("GET", "/v1/secrets"))["items"]]

    async def rotate(self, name: str, value: str) -> Secret:
        """Replaces the value. Sandboxes use the new value at once."""
        return Secret(await self._transport.json("PUT", f"/v1/secrets/{segment(name)}", body={"value": value}))

    async def delete(self, name: str) -> None:
        """Deletes a secret that no sandbox uses."""
        await self._transport.json("DELETE", f"/v1/secrets/{segment(name)}")


class Providers:
    """Where sandboxes can live. Settings need an admin key."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[Provider]:
        """Lists the providers and what each can do."""
        return [Provider(item) for item in (await self._transport.json("GET", "/v1/providers"))["items"]]

    async def settings(self, name: str) -> ProviderSettings:
        """Returns the settings of a provider without its secrets."""
        return ProviderSettings(await self._transport.json("GET", f"/v1/providers/{segment(name)}/settings"))

    async def set_settings(self, name: str, settings: dict[str, Any]) -> ProviderSettings:
        """Replaces the settings of a provider, or adds a provider. Secrets that are left out are kept."""
        path = f"/v1/providers/{segment(name)}/settings"
        return ProviderSettings(await self._transport.json("PUT", path, body=settings, timeout=LONG_S))

    async def remove_settings(self, name: str) -> None:
        """Removes the settings of a provider. Its sandboxes go on; it takes no new ones."""
        await self._transport.json("DELETE", f"/v1/providers/{segment(name)}/settings")

    async def test(self, name: str) -> ProviderTest:
        """Opens a provider and asks it for a sign of life."""
        path = f"/v1/providers/{segment(name)}/test"
        return ProviderTest(await self._transport.json("POST", path, timeout=LONG_S))
