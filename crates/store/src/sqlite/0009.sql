-- The servers that share this database: each has a name and a data folder of its own.
CREATE TABLE nodes (
  name TEXT PRIMARY KEY,
  folder TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Files and processes are on one node, and only that one changes their rows. The server that opens older rows first is
-- their node.
ALTER TABLE sandbox_leases ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE sandbox_instances ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE volumes ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE builds ADD COLUMN node TEXT NOT NULL DEFAULT '';
DROP INDEX lease_due;
CREATE INDEX lease_due ON sandbox_leases(node, due_at) WHERE due_at IS NOT NULL;

-- Which nodes have the files of a version, and the snapshot that its sandboxes start from there.
CREATE TABLE template_copies (
  template INTEGER NOT NULL,
  version TEXT NOT NULL,
  node TEXT NOT NULL,
  warm TEXT,
  PRIMARY KEY (template, version, node),
  FOREIGN KEY (template, version) REFERENCES template_versions(template, version) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO template_copies SELECT template, version, '', warm FROM template_versions;
ALTER TABLE template_versions DROP COLUMN warm;

-- Changes that other nodes have in a cache, in the order of their commits.
CREATE TABLE changes (
  revision INTEGER PRIMARY KEY AUTOINCREMENT,
  node TEXT NOT NULL,
  what TEXT NOT NULL
) STRICT;
