-- The name of a snapshot belongs to its sandbox, unless it is tenant-wide. Older names are tenant-wide.
ALTER TABLE snapshots ADD COLUMN name_scope TEXT
  AS (CASE WHEN coalesce(json_extract(snapshot, '$.tenant_wide'), 1) THEN '' ELSE sandbox END) VIRTUAL;
DROP INDEX snapshot_names;
CREATE UNIQUE INDEX snapshot_names ON snapshots(tenant, name, name_scope) WHERE name IS NOT NULL AND state <> 'deleting';
