-- A database of schema 11, as the program of commit 96755ff2 wrote it, with a sandbox in every phase. Sealed with secret.key beside it.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE abstract_terminals (
  id TEXT PRIMARY KEY,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  instance TEXT NOT NULL,
  thread TEXT NOT NULL,
  pid INTEGER NOT NULL,
  created_ms INTEGER NOT NULL, settings TEXT NOT NULL DEFAULT '{}',
  UNIQUE (sandbox, thread)
) STRICT;
CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  scope TEXT NOT NULL,
  name TEXT,
  created_ms INTEGER NOT NULL,
  last_used_ms INTEGER
) STRICT;
INSERT INTO "api_keys" VALUES('xnvh6y5pdnaxw24o38jb',X'DEB87FABD17715BB31AD4CF4FFB9494EEB15F8D33D85B031A301C64AB3417EAA','cz52myacaw5u8omak7hi','admin','admin',1795133491604,1795133493452);
INSERT INTO "api_keys" VALUES('xlsxi1ccb53368qthn4z',X'AB95416018693C26803326CE006D7EDD5A09D98A36CCC09571D44B0BB10E0CC2','cz52myacaw5u8omak7hi','user','ci',1795133493437,NULL);
CREATE TABLE builds (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  template TEXT NOT NULL,
  status TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  build TEXT NOT NULL
, node TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE changes (
  revision INTEGER PRIMARY KEY AUTOINCREMENT,
  node TEXT NOT NULL,
  what TEXT NOT NULL
) STRICT;
CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  sandbox TEXT NOT NULL,
  instance TEXT,
  at TEXT NOT NULL,
  what TEXT NOT NULL
, hidden INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "events" VALUES(1,'cz52myacaw5u8omak7hi','wzlz7lolmyfk6fl3quur','tka40qdx73nqz299fmwy','{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952}','{"kind":"phase","from":null,"to":"creating","reason":{"code":"requested"}}',0);
INSERT INTO "events" VALUES(2,'cz52myacaw5u8omak7hi','wzlz7lolmyfk6fl3quur','tka40qdx73nqz299fmwy','{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974}','{"kind":"phase","from":"creating","to":"running","reason":{"code":"completed"}}',0);
INSERT INTO "events" VALUES(3,'cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z','sxf7j8jy7mxdbiu1s5m7','{"wall_ms":1795133493269,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957990}','{"kind":"phase","from":null,"to":"creating","reason":{"code":"requested"}}',0);
INSERT INTO "events" VALUES(4,'cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z','sxf7j8jy7mxdbiu1s5m7','{"wall_ms":1795133493273,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957994}','{"kind":"phase","from":"creating","to":"running","reason":{"code":"completed"}}',0);
INSERT INTO "events" VALUES(5,'cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z','sxf7j8jy7mxdbiu1s5m7','{"wall_ms":1795133493297,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958018}','{"kind":"phase","from":"running","to":"stopping","reason":{"code":"requested"}}',0);
INSERT INTO "events" VALUES(6,'cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z','sxf7j8jy7mxdbiu1s5m7','{"wall_ms":1795133493306,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958027}','{"kind":"phase","from":"stopping","to":"stopped","reason":{"code":"completed"}}',0);
INSERT INTO "events" VALUES(7,'cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z',NULL,'{"wall_ms":1795133493334,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958055}','{"kind":"snapshotted","snapshot":"kb7zjyx9gp6y5juienh8","memory":false}',0);
CREATE TABLE idempotency (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  request BLOB NOT NULL,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE lease_mounts (
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  volume TEXT NOT NULL,
  PRIMARY KEY (sandbox, volume)
) STRICT, WITHOUT ROWID;
CREATE TABLE lease_resource_snapshots (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  at_ms INTEGER NOT NULL,
  sample TEXT NOT NULL
) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "meta" VALUES('vault','c4acb0af9b22bd2e7f7d3d6f04b840f47f49bdfa02b807d05ab2af5c4d03806e');
INSERT INTO "meta" VALUES('opened','1');
CREATE TABLE nodes (
  name TEXT PRIMARY KEY,
  folder TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "nodes" VALUES('vm','39488e5e05ece817f3ad');
CREATE TABLE previews (
  id TEXT PRIMARY KEY,
  sandbox TEXT NOT NULL REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  port INTEGER NOT NULL,
  hash BLOB NOT NULL UNIQUE,
  public INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER
) STRICT;
CREATE TABLE sandbox_instances (
  sandbox TEXT PRIMARY KEY REFERENCES sandbox_leases(id) ON DELETE CASCADE,
  instance TEXT NOT NULL UNIQUE,
  facts TEXT NOT NULL,
  agent_token BLOB NOT NULL
, node TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "sandbox_instances" VALUES('wzlz7lolmyfk6fl3quur','tka40qdx73nqz299fmwy','{"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","cgroup":"tka40qdx73nqz299fmwy","first_id":268500992,"link":{"address":"100.112.121.169","number":3176873},"pid":30465,"started":195796,"storage":"disk","template":"host","template_version":"1b1f62e2e566aa606282ffff"}',X'EBB1E30FC8668060A8904591A4F86CE3036889413B9A5E98E579B81800F48C6815BB67B5DC28E75131C4932394FD5FD169A23A9300A0C0FA5D6418A76DBD5A6BFC67EA15ED677030A708DD344E8F43106443C4355FB164ED222B3DDF54C7ACC5D7445A8C74419688','vm');
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
, parent TEXT, thread TEXT, template_version TEXT, build TEXT, started_ms INTEGER NOT NULL DEFAULT 0, node TEXT NOT NULL DEFAULT '', exit_pending INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "sandbox_leases" VALUES(1,'wzlz7lolmyfk6fl3quur','cz52myacaw5u8omak7hi','run1','host','container','run','running',1,1000,512,2048,2,NULL,1795133493253,'{"id":"wzlz7lolmyfk6fl3quur","tenant":"cz52myacaw5u8omak7hi","name":"run1","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"running","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":"tka40qdx73nqz299fmwy","timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(2,'mkytni6o8f35riywp97z','cz52myacaw5u8omak7hi','stop1','host','container','stop','stopped',0,1000,512,2048,4,NULL,1795133493306,'{"id":"mkytni6o8f35riywp97z","tenant":"cz52myacaw5u8omak7hi","name":"stop1","labels":{},"env":{"LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"stop","phase":"stopped","stage":"booting","reason":{"code":"completed"},"generation":4,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493269,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957990},"phase_at":{"wall_ms":1795133493306,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958027},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":{"wall_ms":1795133493270,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957992},"stopped_at":{"wall_ms":1795133493306,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958027},"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493273,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957994},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493273,'vm',0);
INSERT INTO "sandbox_leases" VALUES(3,'oldcreatingxxxxxxxxx','cz52myacaw5u8omak7hi','old-creating','host','container','run','creating',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldcreatingxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-creating","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"creating","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(4,'oldpausingxxxxxxxxxx','cz52myacaw5u8omak7hi','old-pausing','host','container','pause','pausing',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldpausingxxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-pausing","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"pause","phase":"pausing","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":"live","timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(5,'oldpausedxxxxxxxxxxx','cz52myacaw5u8omak7hi','old-paused','host','container','pause','paused',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldpausedxxxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-paused","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"pause","phase":"paused","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":"live","timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(6,'oldresumingxxxxxxxxx','cz52myacaw5u8omak7hi','old-resuming','host','container','run','resuming',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldresumingxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-resuming","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"resuming","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":"live","timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(7,'oldstoppingxxxxxxxxx','cz52myacaw5u8omak7hi','old-stopping','host','container','stop','stopping',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldstoppingxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-stopping","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"stop","phase":"stopping","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(8,'oldstartingxxxxxxxxx','cz52myacaw5u8omak7hi','old-starting','host','container','run','starting',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldstartingxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-starting","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"starting","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(9,'oldfailedxxxxxxxxxxx','cz52myacaw5u8omak7hi','old-failed','host','container','run','failed',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldfailedxxxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-failed","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"failed","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(10,'oldarchivingxxxxxxxx','cz52myacaw5u8omak7hi','old-archiving','host','container','archive','archiving',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldarchivingxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-archiving","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"archive","phase":"archiving","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(11,'oldarchivedxxxxxxxxx','cz52myacaw5u8omak7hi','old-archived','host','container','archive','archived',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldarchivedxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-archived","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"archive","phase":"archived","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":{"key":"oldarchivedxxxxxxxxx/0000000000000000000000000000000000000000000000000000000000000000","bytes":4096,"stored_bytes":1024},"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(12,'oldrestoringxxxxxxxx','cz52myacaw5u8omak7hi','old-restoring','host','container','run','restoring',1,1000,512,2048,2,NULL,1795133493253,'{"id":"oldrestoringxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-restoring","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"run","phase":"restoring","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(13,'olddeletingxxxxxxxxx','cz52myacaw5u8omak7hi','old-deleting','host','container','delete','deleting',1,1000,512,2048,2,NULL,1795133493253,'{"id":"olddeletingxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-deleting","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"delete","phase":"deleting","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
INSERT INTO "sandbox_leases" VALUES(14,'olddeletedxxxxxxxxxx','cz52myacaw5u8omak7hi','old-deleted','host','container','delete','deleted',1,1000,512,2048,2,NULL,1795133493253,'{"id":"olddeletedxxxxxxxxxx","tenant":"cz52myacaw5u8omak7hi","name":"old-deleted","labels":{"team":"x"},"env":{"A":"b","LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"provider":"container","node":"vm","template":"host","template_version":"1b1f62e2e566aa606282ffff","user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"storage":"disk","intent":"delete","phase":"deleted","stage":"booting","reason":{"code":"completed"},"generation":2,"instance":null,"timeout_s":null,"timeout_at":null,"on_timeout":"delete","timeout_counts":"always","created_at":{"wall_ms":1795133493231,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957952},"phase_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"held":null,"timers":{"auto_stop_s":null,"auto_pause_s":null,"checkpoint_after_s":null,"auto_archive_s":null,"auto_delete_s":null},"active_at":null,"stopped_at":null,"hold":null,"on_exit":"keep","thread":null,"wake":"any","source":{"kind":"template"},"parent":null,"private_env":[],"archive":null,"rollback_to":null,"mounts":[],"build":null,"public":false,"mask_host":null,"https_ports":[],"token_epoch":0,"annotations":{},"secrets":{},"started_at":{"wall_ms":1795133493253,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1957974},"image_build":null,"awaits":null,"queue":null,"isolation":"container","created_by_key":{"id":"xnvh6y5pdnaxw24o38jb","name":"admin"},"moving":null,"last_move":null}',NULL,NULL,'1b1f62e2e566aa606282ffff',NULL,1795133493253,'vm',0);
CREATE TABLE secrets (
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  value BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  rotated_ms INTEGER, id TEXT NOT NULL DEFAULT '', version INTEGER NOT NULL DEFAULT 1, changed_ms INTEGER NOT NULL DEFAULT 0, about TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "secrets" VALUES('cz52myacaw5u8omak7hi','KEY',X'238A1E420DEF17A4A802612527C073C95ED45D6C611B034BC219779256939D39EE872239DD202680B0',1795133493417,NULL,'cpqq9q6mnvvtbsl9su6e',1,1795133493417,'{"description":null,"hosts":[],"metadata":{}}');
CREATE TABLE snapshots (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  sandbox TEXT NOT NULL,
  name TEXT,
  state TEXT NOT NULL,
  transient INTEGER NOT NULL,
  agent_token BLOB,
  snapshot TEXT NOT NULL
, node TEXT NOT NULL DEFAULT '', provider TEXT AS (json_extract(snapshot, '$.provider')) VIRTUAL) STRICT;
INSERT INTO "snapshots" VALUES(1,'kb7zjyx9gp6y5juienh8','cz52myacaw5u8omak7hi','mkytni6o8f35riywp97z','clean','ready',0,NULL,'{"id":"kb7zjyx9gp6y5juienh8","tenant":"cz52myacaw5u8omak7hi","node":"vm","sandbox":"mkytni6o8f35riywp97z","provider":"container","name":"clean","transient":false,"warm":false,"state":"ready","memory":false,"template":"host","template_version":"1b1f62e2e566aa606282ffff","env":{"LANG":"C.UTF-8","PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},"user":"user","workdir":"/home/user","command":null,"limits":{"cpu_milli":1000,"memory_mib":512,"disk_mib":2048,"pids":512},"network":{"mode":"allow-all"},"bytes":16384,"seal":"{\"files\":{\"btrfs\":{\"uuid\":\"367d786820628849b0ed7b968ec9748b\",\"changed_in\":9}},\"bytes\":16384,\"is_estimate\":false}","stood_still_us":0,"created_at":{"wall_ms":1795133493331,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958052}}','vm');
CREATE TABLE template_aliases (
  tenant TEXT NOT NULL,
  alias TEXT NOT NULL,
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  PRIMARY KEY (tenant, alias)
) STRICT, WITHOUT ROWID;
CREATE TABLE template_copies (
  template INTEGER NOT NULL,
  version TEXT NOT NULL,
  node TEXT NOT NULL,
  warm TEXT,
  PRIMARY KEY (template, version, node),
  FOREIGN KEY (template, version) REFERENCES template_versions(template, version) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TABLE template_tags (
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  version TEXT NOT NULL,
  PRIMARY KEY (template, tag)
) STRICT, WITHOUT ROWID;
CREATE TABLE template_versions (
  template INTEGER NOT NULL REFERENCES templates(n) ON DELETE CASCADE,
  version TEXT NOT NULL,
  manifest TEXT,
  row TEXT NOT NULL,
  PRIMARY KEY (template, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE templates (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  public INTEGER NOT NULL,
  changes TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (tenant, name)
) STRICT;
CREATE TABLE tenants (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  quota TEXT NOT NULL,
  created_ms INTEGER NOT NULL
, network TEXT, providers TEXT) STRICT;
INSERT INTO "tenants" VALUES('cz52myacaw5u8omak7hi','default','{"sandboxes":null,"cpu_milli":null,"memory_mib":null,"disk_mib":null,"volumes":null,"volume_mib":null}',1795133491602,NULL,NULL);
INSERT INTO "tenants" VALUES('nxgm0885j9a1bn4m1yt6','acme','{"sandboxes":null,"cpu_milli":null,"memory_mib":null,"disk_mib":null,"volumes":null,"volume_mib":null}',1795133493453,NULL,NULL);
CREATE TABLE threads (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  thread TEXT NOT NULL,
  provider TEXT NOT NULL,
  sandbox TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  UNIQUE (tenant, thread)
) STRICT;
CREATE TABLE volumes (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  size_mib INTEGER NOT NULL,
  state TEXT NOT NULL,
  volume TEXT NOT NULL
, node TEXT NOT NULL DEFAULT '', provider TEXT AS (json_extract(volume, '$.provider')) VIRTUAL) STRICT;
INSERT INTO "volumes" VALUES(1,'fbqo98exk93az1lgnglg','cz52myacaw5u8omak7hi','data',100,'ready','{"id":"fbqo98exk93az1lgnglg","tenant":"cz52myacaw5u8omak7hi","node":"vm","name":"data","provider":"container","size_mib":100,"folder":null,"read_only":false,"parent":null,"state":"ready","created_at":{"wall_ms":1795133493363,"boot_id":"d3d033db-4926-470b-8e20-6fc79cd7508f","boot_ms":1958084}}','vm');
CREATE UNIQUE INDEX lease_names ON sandbox_leases(tenant, name) WHERE name IS NOT NULL AND observed <> 'deleted';
CREATE INDEX lease_usage ON sandbox_leases(tenant, holds_compute, cpu_milli, memory_mib, disk_mib) WHERE observed <> 'deleted';
CREATE INDEX lease_tenants ON sandbox_leases(tenant, n);
CREATE INDEX lease_live ON sandbox_leases(observed, template) WHERE observed <> 'deleted';
CREATE INDEX lease_deleted ON sandbox_leases(phase_ms) WHERE observed = 'deleted';
CREATE INDEX snapshots_of ON lease_resource_snapshots(sandbox, n);
CREATE INDEX idempotency_sandbox ON idempotency(sandbox);
CREATE INDEX events_of ON events(sandbox, seq);
CREATE INDEX events_tenant ON events(tenant, seq);
CREATE UNIQUE INDEX snapshot_names ON snapshots(tenant, name) WHERE name IS NOT NULL AND state <> 'deleting';
CREATE INDEX snapshot_tenants ON snapshots(tenant, n);
CREATE INDEX snapshot_sandboxes ON snapshots(sandbox, n);
CREATE INDEX lease_parents ON sandbox_leases(parent, n) WHERE parent IS NOT NULL;
CREATE INDEX lease_threads ON sandbox_leases(thread, n) WHERE thread IS NOT NULL AND observed <> 'deleted';
CREATE INDEX preview_sandboxes ON previews(sandbox, created_ms);
CREATE INDEX template_public ON templates(name, n) WHERE public;
CREATE INDEX template_tag_versions ON template_tags(version);
CREATE INDEX template_aliases_of ON template_aliases(template);
CREATE INDEX build_tenants ON builds(tenant, n);
CREATE INDEX build_open ON builds(n) WHERE status IN ('waiting', 'building');
CREATE UNIQUE INDEX volume_names ON volumes(tenant, name) WHERE state <> 'deleting';
CREATE INDEX mounts_of ON lease_mounts(volume);
CREATE INDEX lease_versions ON sandbox_leases(template_version) WHERE observed <> 'deleted';
CREATE UNIQUE INDEX secret_ids ON secrets(id);
CREATE INDEX lease_due ON sandbox_leases(node, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX thread_tenants ON threads(tenant, n);
CREATE INDEX lease_exits ON sandbox_leases(node) WHERE exit_pending = 1;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('threads',0);
INSERT INTO "sqlite_sequence" VALUES('sandbox_leases',14);
INSERT INTO "sqlite_sequence" VALUES('events',7);
INSERT INTO "sqlite_sequence" VALUES('snapshots',1);
INSERT INTO "sqlite_sequence" VALUES('volumes',1);
COMMIT;
PRAGMA user_version=11;
