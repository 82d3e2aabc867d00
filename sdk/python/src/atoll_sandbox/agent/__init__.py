"""Sandboxes for agents: a workspace per session, and tools by name that every framework can call."""
