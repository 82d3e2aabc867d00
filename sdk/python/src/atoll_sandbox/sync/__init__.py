# Made from ../aio/__init__.py by scripts/generate.py; do not edit.

"""The blocking client, from which the package `sync` is derived."""
