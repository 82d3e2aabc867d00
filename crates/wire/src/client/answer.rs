//! Answers: typed, together with the server's own JSON for programs that pass it on.

use std::ops::Deref;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::builds::{Build, BuildLine, BuildLog, BuildPage};
use crate::code::{CodeContext, CodeContextList};
use crate::egress::{Egress, EgressList};
use crate::events::{Event, EventList};
use crate::files::{Entry, EntryList};
use crate::keys::{Key, KeyList};
use crate::previews::{Preview, PreviewList};
use crate::processes::{Process, ProcessList};
use crate::providers::{Provider, ProviderList};
use crate::sandboxes::{Ended, Sandbox, SandboxPage};
use crate::secrets::{Secret, SecretList};
use crate::sessions::{Session, SessionList};
use crate::snapshots::{Snapshot, SnapshotPage};
use crate::templates::{Template, TemplateList};
use crate::tenants::{Tenant, TenantList};
use crate::threads::{Thread, ThreadPage};
use crate::volume_files::{VolumeEntry, VolumeEntryList};
use crate::volumes::{Volume, VolumeList};

/// One answer. It is serialised as the server sent it, including fields that this client does not know.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    typed: T,
    raw: Value,
}

impl<T: DeserializeOwned> Answer<T> {
    /// Reads an answer's body.
    pub fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let raw: Value = serde_json::from_slice(body)?;
        // Parsed again from the bytes, because that error has a position.
        Ok(Self { typed: serde_json::from_slice(body)?, raw })
    }

    /// Parses an answer from a JSON value.
    pub fn from_value(raw: Value) -> Result<Self, serde_json::Error> {
        Ok(Self { typed: T::deserialize(&raw)?, raw })
    }
}

impl<T> Answer<T> {
    /// The server's JSON.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// The typed part alone.
    pub fn into_typed(self) -> T {
        self.typed
    }

    /// One field of the server's JSON; null if it is missing.
    pub fn raw_field(&self, name: &str) -> &Value {
        &self.raw[name]
    }

    /// The same with an added or replaced field.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: Value) -> Self {
        self.raw[name] = value;
        self
    }
}

impl<T> Deref for Answer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.typed
    }
}

impl<T> Serialize for Answer<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(to)
    }
}

/// The items of a list. It is serialised as an array of what the server sent.
#[derive(Debug, Clone)]
pub struct Listing<T> {
    pub items: Vec<T>,
    raw: Vec<Value>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { items: Vec::new(), raw: Vec::new() }
    }
}

impl<T> Listing<T> {
    /// The items of an answer.
    pub fn of<L: List<Item = T>>(answer: Answer<L>) -> Self {
        let raw = match answer.raw {
            Value::Object(mut fields) => match fields.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        Self { items: answer.typed.into_items(), raw }
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.items.extend(more.items);
        self.raw.extend(more.raw);
    }

    /// Each item with the server's JSON.
    pub fn into_answers(self) -> impl Iterator<Item = Answer<T>> {
        self.items.into_iter().zip(self.raw).map(|(typed, raw)| Answer { typed, raw })
    }
}

impl<T: DeserializeOwned> Listing<T> {
    /// Parses a list from a JSON value.
    pub fn from_value(raw: Value) -> Result<Self, serde_json::Error> {
        let Value::Array(raw) = raw else { return Err(serde_json::Error::custom("not an array")) };
        let items = raw.iter().map(T::deserialize).collect::<Result<_, _>>()?;
        Ok(Self { items, raw })
    }
}

impl<T> Serialize for Listing<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(to)
    }
}

/// An answer with `items`.
pub trait List {
    type Item;
    fn into_items(self) -> Vec<Self::Item>;
}

/// A list with pages.
pub trait Page: List {
    fn next_cursor(&self) -> Option<&str>;
}

macro_rules! lists {
    ($($list:ty => $item:ty,)*) => {
        $(impl List for $list {
            type Item = $item;
            fn into_items(self) -> Vec<$item> {
                self.items
            }
        })*
    };
}

macro_rules! pages {
    ($($page:ty => $item:ty,)*) => {
        lists! { $($page => $item,)* }
        $(impl Page for $page {
            fn next_cursor(&self) -> Option<&str> {
                self.next_cursor.as_deref()
            }
        })*
    };
}

lists! {
    BuildLog => BuildLine,
    CodeContextList => CodeContext,
    EgressList => Egress,
    Ended => Sandbox,
    EntryList => Entry,
    EventList => Event,
    KeyList => Key,
    PreviewList => Preview,
    ProcessList => Process,
    ProviderList => Provider,
    SecretList => Secret,
    SessionList => Session,
    TemplateList => Template,
    TenantList => Tenant,
    VolumeEntryList => VolumeEntry,
    VolumeList => Volume,
}
pages! {
    BuildPage => Build,
    SandboxPage => Sandbox,
    SnapshotPage => Snapshot,
    ThreadPage => Thread,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::secrets::Secret;
    use serde_json::json;

    #[test]
    fn an_answer_keeps_what_this_client_does_not_know() {
        let sent = json!({"name": "K", "created_at": "2026-01-01T00:00:00Z", "rotated_at": null, "used_by": 1, "newer": [1]});
        let answer = Answer::<Secret>::from_value(sent.clone()).unwrap();
        assert_eq!(answer.used_by, 1);
        assert_eq!(serde_json::to_value(&answer).unwrap(), sent);
        let list =
            Listing::of(Answer::<SecretList>::from_value(json!({"items": [sent], "more": 1})).unwrap());
        assert_eq!(serde_json::to_value(&list).unwrap(), json!([sent]));
    }
}
