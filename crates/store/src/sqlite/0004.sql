-- What a tenant keeps here to be used outside of sandboxes, never inside. `value` is sealed.
CREATE TABLE secrets (
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  value BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  rotated_ms INTEGER,
  PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- What narrows every sandbox of the tenant.
ALTER TABLE tenants ADD COLUMN network TEXT;
