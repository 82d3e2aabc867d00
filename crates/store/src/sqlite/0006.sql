-- When a sandbox last began to run, or was asked for where it never did: what lists are sorted by.
ALTER TABLE sandbox_leases ADD COLUMN started_ms INTEGER NOT NULL DEFAULT 0;
UPDATE sandbox_leases SET started_ms = coalesce(json_extract(lease, '$.created_at.wall_ms'), phase_ms);

-- Secrets have an id, a version that counts their values, and what people and fronts say of them.
ALTER TABLE secrets ADD COLUMN id TEXT NOT NULL DEFAULT '';
UPDATE secrets SET id = 's' || substr(lower(hex(randomblob(10))), 2);
ALTER TABLE secrets ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE secrets ADD COLUMN changed_ms INTEGER NOT NULL DEFAULT 0;
UPDATE secrets SET changed_ms = coalesce(rotated_ms, created_ms);
ALTER TABLE secrets ADD COLUMN about TEXT NOT NULL DEFAULT '{}';
CREATE UNIQUE INDEX secret_ids ON secrets(id);
