-- Snapshots and volumes know the provider that keeps them, as leases do. Older ones are all of the container engine.
UPDATE snapshots SET snapshot = json_set(snapshot, '$.provider', 'container')
 WHERE json_extract(snapshot, '$.provider') IS NULL;
UPDATE volumes SET volume = json_set(volume, '$.provider', 'container')
 WHERE json_extract(volume, '$.provider') IS NULL;
ALTER TABLE snapshots ADD COLUMN provider TEXT AS (json_extract(snapshot, '$.provider')) VIRTUAL;
ALTER TABLE volumes ADD COLUMN provider TEXT AS (json_extract(volume, '$.provider')) VIRTUAL;
