"""The asynchronous client, from which the package `sync` is derived."""
