"""Extras: packages that only some modules need."""

from __future__ import annotations


def missing_extra(extra: str, cause: ImportError) -> ImportError:
    """The error of a module whose extra is not installed."""
    return ImportError(
        f"the package {cause.name} is missing: pip install 'atoll-sandbox[{extra}]'", name=cause.name, path=cause.path
    )
