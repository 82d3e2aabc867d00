"""The tables: leases, instances, terminals and metrics, beside the settings."""

import os
import sqlite3
from pathlib import Path

database = sqlite3.connect(f"file:{Path(os.environ['ATOLL_DATA']) / 'sandbox.db'}?mode=ro", uri=True)
tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
assert {"sandbox_leases", "sandbox_instances", "abstract_terminals", "lease_resource_snapshots"} <= tables, tables
