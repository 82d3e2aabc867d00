-- A sandbox at a moment. `sandbox` may be gone by now, so nothing refers to it; `snapshot` is the whole record.
CREATE TABLE snapshots (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  sandbox TEXT NOT NULL,
  name TEXT,
  state TEXT NOT NULL,
  transient INTEGER NOT NULL,
  agent_token BLOB,
  snapshot TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX snapshot_names ON snapshots(tenant, name) WHERE name IS NOT NULL AND state <> 'deleting';
CREATE INDEX snapshot_tenants ON snapshots(tenant, n);
CREATE INDEX snapshot_sandboxes ON snapshots(sandbox, n);

ALTER TABLE sandbox_leases ADD COLUMN parent TEXT;
ALTER TABLE sandbox_leases ADD COLUMN thread TEXT;
CREATE INDEX lease_parents ON sandbox_leases(parent, n) WHERE parent IS NOT NULL;
CREATE INDEX lease_threads ON sandbox_leases(thread, n) WHERE thread IS NOT NULL AND observed <> 'deleted';
