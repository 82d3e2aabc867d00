-- Threads of conversation. A thread is bound to the provider of its first sandbox for good; `sandbox` is its newest
-- sandbox, which may be deleted.
CREATE TABLE threads (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  thread TEXT NOT NULL,
  provider TEXT NOT NULL,
  sandbox TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (tenant, thread)
) STRICT;
CREATE INDEX thread_tenants ON threads(tenant, n);
-- Several sandboxes could name one thread before; the oldest is its sandbox now.
INSERT OR IGNORE INTO threads (tenant, thread, provider, sandbox, created_ms)
  SELECT tenant, thread, provider, id, json_extract(lease, '$.created_at.wall_ms') FROM sandbox_leases
   WHERE thread IS NOT NULL AND observed NOT IN ('deleting', 'deleted') ORDER BY n;

-- 1: its server ended in good order, and it is not certain that it did what `on_exit` says.
ALTER TABLE sandbox_leases ADD COLUMN exit_pending INTEGER NOT NULL DEFAULT 0;
CREATE INDEX lease_exits ON sandbox_leases(node) WHERE exit_pending = 1;
