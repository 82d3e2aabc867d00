-- The user key that created a key. NULL: the server or an admin key created it, or it is older than this column.
ALTER TABLE api_keys ADD COLUMN created_by TEXT;
CREATE INDEX api_keys_created_by ON api_keys(created_by) WHERE created_by IS NOT NULL;
