"""A pause of a program, in both worlds."""

from __future__ import annotations

import time


async def async_sleep(seconds: float) -> None:
    """Waits. Works below asyncio and trio, as httpx does."""
    # Imported when it is needed: importing this package stays fast.
    import anyio

    await anyio.sleep(seconds)


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)
