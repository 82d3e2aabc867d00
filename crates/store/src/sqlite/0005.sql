-- Templates by name. Versions are files of the image store; here is who calls them what.
CREATE TABLE templates (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  public INTEGER NOT NULL,
  changes TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (tenant, name)
) STRICT;
CREATE INDEX template_public ON templates(name, n) WHERE public;

CREATE TABLE template_tags (
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  version TEXT NOT NULL,
  PRIMARY KEY (template, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX template_tag_versions ON template_tags(version);

CREATE TABLE template_aliases (
  tenant TEXT NOT NULL,
  alias TEXT NOT NULL,
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  PRIMARY KEY (tenant, alias)
) STRICT, WITHOUT ROWID;
CREATE INDEX template_aliases_of ON template_aliases(template);

CREATE TABLE template_versions (
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  version TEXT NOT NULL,
  manifest TEXT,
  warm TEXT,
  row TEXT NOT NULL,
  PRIMARY KEY (template, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE builds (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  template TEXT NOT NULL,
  status TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  build TEXT NOT NULL
) STRICT;
CREATE INDEX build_tenants ON builds(tenant, n);
CREATE INDEX build_open ON builds(n) WHERE status IN ('waiting', 'building');

CREATE TABLE volumes (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  size_mib INTEGER NOT NULL,
  state TEXT NOT NULL,
  volume TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX volume_names ON volumes(tenant, name) WHERE state <> 'deleting';

-- Which sandboxes that are not deleted see which volumes.
CREATE TABLE lease_mounts (
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  volume TEXT NOT NULL,
  PRIMARY KEY (sandbox, volume)
) STRICT, WITHOUT ROWID;
CREATE INDEX mounts_of ON lease_mounts(volume);

ALTER TABLE sandbox_leases ADD COLUMN template_version TEXT;
UPDATE sandbox_leases SET template_version = json_extract(lease, '$.template_version');
CREATE INDEX lease_versions ON sandbox_leases(template_version) WHERE observed <> 'deleted';

-- Sandboxes of builds, and what happened to them, are in no list.
ALTER TABLE sandbox_leases ADD COLUMN build TEXT;
ALTER TABLE events ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
