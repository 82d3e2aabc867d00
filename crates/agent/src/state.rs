//! Everything the agent holds, shared by its tasks.

use crate::hold::Holds;
use crate::identity::Workers;
use crate::logs::Logs;
use crate::metrics::Meter;
use crate::process::Table;
use crate::settings::Settings;
use crate::watch::Held;

pub(crate) struct Agent {
    pub(crate) settings: Settings,
    pub(crate) processes: Table,
    pub(crate) logs: Logs,
    pub(crate) workers: Workers,
    pub(crate) watchers: Held,
    pub(crate) meter: Meter,
    pub(crate) holds: Holds,
}

impl Agent {
    pub(crate) fn new(token: Vec<u8>) -> Self {
        Self {
            settings: Settings::new(token),
            processes: Table::default(),
            logs: Logs::default(),
            workers: Workers::new(),
            watchers: Held::default(),
            meter: Meter::default(),
            holds: Holds::default(),
        }
    }
}
