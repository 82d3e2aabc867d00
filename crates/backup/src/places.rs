//! The places of a backup and of a restore, in their order. Their progress tells them; a test can end the program there.

pub const COPYING: &str = "backup.copying";
pub const WRITING: &str = "backup.writing";
pub const RESTORING_RECORDS: &str = "restore.records";
/// Also agents and archives.
pub const RESTORING_TEMPLATES: &str = "restore.templates";
pub const RESTORING_SANDBOXES: &str = "restore.sandboxes";
/// Also snapshots.
pub const RESTORING_VOLUMES: &str = "restore.volumes";
/// Every file is there; new seals, and sandboxes are brought to rest.
pub const FINISHING: &str = "restore.finishing";

/// All of them.
pub const ALL: [&str; 7] = [
    COPYING,
    WRITING,
    RESTORING_RECORDS,
    RESTORING_TEMPLATES,
    RESTORING_SANDBOXES,
    RESTORING_VOLUMES,
    FINISHING,
];
