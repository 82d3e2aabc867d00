//! Ports with a listening program in the sandbox, from its own kernel tables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::command::ProgramCommand;
use crate::{Toolbox, ToolboxError};

/// The agent's own port is hidden.
const HIDDEN: u16 = atoll_agentapi::AGENT_PORT;
const LIMIT: Duration = Duration::from_secs(10);
/// The kernel's state of a listening socket.
const LISTENS: &str = "0A";

impl Toolbox {
    /// TCP ports with a listener, in order.
    pub async fn listening_ports(&self) -> Result<Vec<u16>, ToolboxError> {
        // Files of the kernel have no size, so a program reads them.
        let command = ProgramCommand {
            program: "cat",
            args: ["/proc/net/tcp", "/proc/net/tcp6"].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            limit: LIMIT,
            hint: "use a template with coreutils or busybox",
        };
        // Without IPv6 one of the files is missing; the other one is still printed.
        let told = self.run(command).await?.stdout;
        Ok(parse(&String::from_utf8_lossy(&told)).into_iter().filter(|port| *port != HIDDEN).collect())
    }
}

fn parse(text: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (local, state) = (words.nth(1)?, words.nth(1)?);
        (state == LISTENS).then_some(())?;
        u16::from_str_radix(local.rsplit(':').next()?, 16).ok()
    };
    text.lines().filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_listens_is_told() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000\n\
            0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0\nnonsense\n";
        assert_eq!(parse(table).into_iter().collect::<Vec<_>>(), [80, 8080]);
    }

    #[test]
    fn any_table_of_sockets_is_read() {
        atoll_robustness::check("socket_table", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            assert!(parse(&text).len() <= text.lines().count());
        });
    }
}
