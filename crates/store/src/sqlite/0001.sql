CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE tenants (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  quota TEXT NOT NULL,
  created_ms INTEGER NOT NULL
) STRICT;

-- `n` orders pages; `lease` is the whole record, the columns beside it are what is asked for.
CREATE TABLE sandbox_leases (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT,
  template TEXT NOT NULL,
  provider TEXT NOT NULL,
  desired TEXT NOT NULL,
  observed TEXT NOT NULL,
  holds_compute INTEGER NOT NULL,
  cpu_milli INTEGER NOT NULL,
  memory_mib INTEGER NOT NULL,
  disk_mib INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  due_at INTEGER,
  phase_ms INTEGER NOT NULL,
  lease TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX lease_names ON sandbox_leases(tenant, name) WHERE name IS NOT NULL AND observed <> 'deleted';
CREATE INDEX lease_usage ON sandbox_leases(tenant, holds_compute, cpu_milli, memory_mib, disk_mib) WHERE observed <> 'deleted';
CREATE INDEX lease_tenants ON sandbox_leases(tenant, n);
CREATE INDEX lease_live ON sandbox_leases(observed, template) WHERE observed <> 'deleted';
CREATE INDEX lease_due ON sandbox_leases(due_at) WHERE due_at IS NOT NULL;
CREATE INDEX lease_deleted ON sandbox_leases(phase_ms) WHERE observed = 'deleted';

CREATE TABLE sandbox_instances (
  sandbox TEXT PRIMARY KEY REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  instance TEXT NOT NULL UNIQUE,
  facts TEXT NOT NULL,
  agent_token BLOB NOT NULL
) STRICT;

CREATE TABLE abstract_terminals (
  id TEXT PRIMARY KEY,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  instance TEXT NOT NULL,
  thread TEXT NOT NULL,
  pid INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (sandbox, thread)
) STRICT;

CREATE TABLE lease_resource_snapshots (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  at_ms INTEGER NOT NULL,
  sample TEXT NOT NULL
) STRICT;
CREATE INDEX snapshots_of ON lease_resource_snapshots(sandbox, n);

CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  scope TEXT NOT NULL,
  name TEXT,
  created_ms INTEGER NOT NULL,
  last_used_ms INTEGER
) STRICT;

CREATE TABLE idempotency (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  request BLOB NOT NULL,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_sandbox ON idempotency(sandbox);

CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  sandbox TEXT NOT NULL,
  instance TEXT,
  at TEXT NOT NULL,
  what TEXT NOT NULL
) STRICT;
CREATE INDEX events_of ON events(sandbox, seq);
CREATE INDEX events_tenant ON events(tenant, seq);
