-- Ways to one port of a sandbox. `hash` is of the token; who has the database has no way in.
CREATE TABLE previews (
  id TEXT PRIMARY KEY,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  port INTEGER NOT NULL,
  hash BLOB NOT NULL UNIQUE,
  public INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER
) STRICT;
CREATE INDEX preview_sandboxes ON previews(sandbox, created_ms);
