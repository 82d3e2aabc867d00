//! Users and groups of the sandbox, parsed from its own `/etc/passwd` and `/etc/group`.
//!
//! NSS is never used: a static glibc would load libraries from an untrusted root. Both files are untrusted input: sizes
//! are limited, invalid lines skipped, FIFOs refused.

use rustix::fs::{FileType, Mode, OFlags};

use crate::error::AgentError;
use crate::files::open;

/// LIMIT: enough for thousands of users; a larger file is an attack.
const FILE_MAX: usize = 1 << 20;

/// LIMIT: the kernel's NGROUPS_MAX is larger, but real lists are not.
const GROUPS_MAX: usize = 256;

/// The user that an operation runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) ids: Ids,
}

/// The ids that the kernel checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// File operations pass permission checks as root's do. Never granted to a process.
    pub(crate) root_files: bool,
    /// The ids that the agent has itself: they are never changed, so no right to change ids is needed.
    pub(crate) is_own: bool,
}

impl Ids {
    pub(crate) const ROOT: Self =
        Self { uid: 0, gid: 0, groups: Vec::new(), root_files: false, is_own: false };
}

/// Finds a user by name or number, with a group (`app:staff`, `1000:1000`) or without, as in image settings.
pub(crate) fn find(name: &str) -> Result<User, AgentError> {
    let accounts = Accounts::read().map_err(|errno| AgentError::from_errno(errno, "users of the sandbox"))?;
    accounts.find(name).ok_or_else(|| {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        AgentError::Unauthenticated(format!("no user '{shown}' in this sandbox"))
    })
}

/// The content of both files, read once per request.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PasswdLine<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl Accounts {
    /// Missing or invalid files contain no user; an error means that the agent could not read them.
    pub(crate) fn read() -> rustix::io::Result<Self> {
        Ok(Self { passwd: read_small(b"/etc/passwd")?, group: read_small(b"/etc/group")? })
    }

    /// `user` or `user:group`, each by name or number. With a group the user has only that group.
    pub(crate) fn find(&self, name: &str) -> Option<User> {
        let (user, group) = match self.lines().find(|line| line.name == name) {
            Some(_) => (name, None),
            None => name.split_once(':').map_or((name, None), |(user, group)| (user, Some(group))),
        };
        let asked = match group.filter(|group| !group.is_empty()) {
            Some(group) => Some(self.group_id(group)?),
            None => None,
        };
        let account = match self.lines().find(|line| line.name == user) {
            Some(line) => line,
            None if user == "root" => PasswdLine { name: "root", uid: 0, gid: 0, home: "/root" },
            None => self.find_number(user)?,
        };
        // The list also contains the primary group, as with Docker and login.
        let groups = match asked {
            Some(gid) => vec![gid],
            None => self.groups_of(account.name, account.gid),
        };
        let ids = Ids { uid: account.uid, gid: asked.unwrap_or(account.gid), groups, ..Ids::ROOT };
        let home = if account.home.starts_with('/') { account.home } else { "/" };
        Some(User { name: account.name.to_owned(), home: home.to_owned(), ids })
    }

    /// A number without an account is in root's group, as with Docker.
    fn find_number<'a>(&'a self, name: &'a str) -> Option<PasswdLine<'a>> {
        let uid = parse_id(name)?;
        let known = self.lines().find(|line| line.uid == uid);
        Some(known.unwrap_or(PasswdLine { name, uid, gid: 0, home: "/" }))
    }

    /// The name of a user id, or the number.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        self.lines().find(|line| line.uid == uid).map_or_else(|| uid.to_string(), |line| line.name.to_owned())
    }

    /// The name of a group id, or the number.
    pub(crate) fn group_name(&self, gid: u32) -> String {
        let found = self.group.lines().filter_map(group_line).find(|(_, id, _)| *id == gid);
        found.map_or_else(|| gid.to_string(), |(name, _, _)| name.to_owned())
    }

    /// The id of a group by its name or number.
    pub(crate) fn group_id(&self, name: &str) -> Option<u32> {
        let known = self.group.lines().filter_map(group_line).find(|(known, _, _)| *known == name);
        known.map_or_else(|| parse_id(name), |(_, id, _)| Some(id))
    }

    fn groups_of(&self, name: &str, gid: u32) -> Vec<u32> {
        let mut groups: Vec<u32> = self
            .group
            .lines()
            .filter_map(group_line)
            .filter(|(_, _, members)| members.split(',').any(|member| member == name))
            .map(|(_, id, _)| id)
            .chain([gid])
            .take(GROUPS_MAX)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn lines(&self) -> impl Iterator<Item = PasswdLine<'_>> {
        self.passwd.lines().filter_map(passwd_line)
    }
}

fn passwd_line(line: &str) -> Option<PasswdLine<'_>> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let (_, uid, gid) = (fields.next()?, parse_id(fields.next()?)?, parse_id(fields.next()?)?);
    let (_, home) = (fields.next()?, fields.next()?);
    Some(PasswdLine { name, uid, gid, home })
}

fn group_line(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let (_, gid) = (fields.next()?, parse_id(fields.next()?)?);
    Some((name, gid, fields.next().unwrap_or_default()))
}

/// The kernel reads 4294967295 as "leave unchanged", so it is not a valid id.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX && !text.starts_with('+'))
}

/// A small regular file as text; empty for anything else. Never blocks on a FIFO in place of the file.
fn read_small(path: &[u8]) -> rustix::io::Result<String> {
    let read = || -> rustix::io::Result<Vec<u8>> {
        let fd = open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Ok(Vec::new());
        }
        let mut text = Vec::new();
        let mut buffer = [0u8; 4096];
        while text.len() < FILE_MAX {
            match rustix::io::read(&fd, &mut buffer)? {
                0 => break,
                n => text.extend_from_slice(&buffer[..n]),
            }
        }
        Ok(text)
    };
    match read() {
        Err(errno) if AgentError::is_exhaustion(errno) => Err(errno),
        read => Ok(String::from_utf8_lossy(&read.unwrap_or_default()).into_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nbad line\nuser:x:1000:1000::/home/user:/bin/bash\nodd:x:5:6::rel:\n".into(),
            group: "root:x:0:\nwheel:x:10:user,other\nuser:x:1000:\ndocker:x:11:user\n".into(),
        }
    }

    #[test]
    fn a_user_has_the_groups_that_list_them() {
        let user = accounts().find("user").unwrap();
        assert_eq!(
            (user.ids.uid, user.ids.gid, user.ids.groups.as_slice()),
            (1000, 1000, &[10, 11, 1000][..])
        );
        assert_eq!(user.home, "/home/user");
    }

    #[test]
    fn root_exists_even_without_files_and_strangers_do_not() {
        let root = Accounts::default().find("root").unwrap().ids;
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(Accounts::default().find("user").is_none());
        assert!(accounts().find("").is_none());
    }

    #[test]
    fn numbers_name_users_too() {
        assert_eq!(accounts().find("1000").unwrap().name, "user");
        let stranger = accounts().find("77:88").unwrap();
        assert_eq!((stranger.ids.uid, stranger.ids.gid, stranger.home.as_str()), (77, 88, "/"));
        let unknown = accounts().find("4242").unwrap().ids;
        assert_eq!((unknown.uid, unknown.gid, unknown.groups.as_slice()), (4242, 0, &[0][..]));
        assert!(accounts().find("4294967295").is_none());
        let grouped = accounts().find("user:wheel").unwrap();
        assert_eq!((grouped.ids.uid, grouped.ids.gid, grouped.ids.groups.as_slice()), (1000, 10, &[10][..]));
        assert_eq!(accounts().find("1000:11").unwrap().ids.gid, 11);
        assert!(accounts().find("user:nothing").is_none() && accounts().find("ghost:wheel").is_none());
        assert_eq!(accounts().find("odd").unwrap().home, "/");
    }

    proptest! {
        #[test]
        fn any_text_parses_to_something_without_panic(passwd in ".{0,200}", group in ".{0,200}", name in ".{0,12}") {
            let accounts = Accounts { passwd, group };
            let _ = accounts.find(&name);
            let _ = (accounts.user_name(1), accounts.group_name(1));
        }

        #[test]
        fn a_written_line_is_found_again(name in "[a-z][a-z0-9-]{0,10}", uid in 1u32..60000, gid in 1u32..60000) {
            let accounts = Accounts { passwd: format!("{name}:x:{uid}:{gid}::/h:/bin/sh"), group: String::new() };
            let user = accounts.find(&name).unwrap();
            prop_assert_eq!((user.ids.uid, user.ids.gid), (uid, gid));
        }
    }

    #[test]
    fn any_accounts_give_users_with_an_absolute_home() {
        atoll_robustness::check("accounts", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let (passwd, group) = text.split_once("\n\n").unwrap_or((&text, ""));
            let accounts = Accounts { passwd: passwd.to_owned(), group: group.to_owned() };
            for name in ["root", "user", "1000:wheel", "", text.split(':').next().unwrap_or_default()] {
                if let Some(user) = accounts.find(name) {
                    assert!(
                        user.home.starts_with('/') && user.ids.uid != u32::MAX && user.ids.gid != u32::MAX
                    );
                    assert!(user.ids.groups.len() <= GROUPS_MAX);
                }
            }
            let _ = (accounts.user_name(1000), accounts.group_name(10));
        });
    }
}
