//! What a config may hold, as data: sections, keys, defaults and what they are about.
//!
//! The typed sections are made from the same lines by [`section!`], so that a new key is one line, and reading, checking,
//! showing and the template all know it.

use std::collections::BTreeMap;

use toml::Value;

/// A value of one key.
pub(super) trait Leaf: Sized {
    /// The words it may be, where it is a choice.
    const CHOICES: &'static [&'static str] = &[];

    /// Reads it; the error says what it must be and what was found.
    fn read(value: &Value) -> Result<Self, String>;
}

/// A table of keys.
#[derive(Debug)]
pub(super) struct Schema {
    /// Its keys in the order in which they are shown.
    pub fields: &'static [Field],
}

/// One key.
#[derive(Debug)]
pub(super) struct Field {
    pub key: &'static str,
    /// What it is for: lines of a comment.
    pub about: &'static [&'static str],
    /// Its type as it is written in Rust.
    pub of: &'static str,
    pub kind: Kind,
    pub fallback: Fallback,
}

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A value.
    Leaf { check: fn(&Value) -> Result<(), String>, choices: &'static [&'static str] },
    /// A table.
    Section(&'static Schema),
    /// An array of tables.
    List(&'static Schema),
    /// A table of the user's own keys with text values.
    Texts,
}

/// What holds when a key is not given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// This, in TOML.
    Is(&'static str),
    /// It must be given. For example so, in TOML.
    Required(&'static str),
    /// Nothing. It could be this, in TOML.
    Absent(&'static str),
    /// A section's own defaults.
    Section,
    /// No section, unless one is given: then its own defaults for what it does not say.
    Optional,
    /// No elements. The template has these: keys with values in TOML.
    Elements(&'static [&'static [(&'static str, &'static str)]]),
    /// The same, and the template has them commented out.
    Examples(&'static [&'static [(&'static str, &'static str)]]),
}

/// Whatever can be the type of a key's field.
pub(super) trait Item {
    const KIND: Kind;
}

fn check<T: Leaf>(value: &Value) -> Result<(), String> {
    T::read(value).map(drop)
}

impl<T: Leaf> Item for T {
    const KIND: Kind = Kind::Leaf { check: check::<T>, choices: T::CHOICES };
}

impl<T: Leaf> Item for Option<T> {
    const KIND: Kind = Kind::Leaf { check: check::<T>, choices: T::CHOICES };
}

impl Item for BTreeMap<String, String> {
    const KIND: Kind = Kind::Texts;
}

/// A typed section.
pub(super) trait Section {
    const SCHEMA: Schema;
}

impl Schema {
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }
}

/// Makes a typed section and its schema: `key: Type = fallback;` with doc comments, which become the template's comments.
macro_rules! section {
    ($($(#[doc = $about:literal])+ $name:ident { $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $fallback:expr;)* })*) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[doc = $doc])+ pub $key: $type,)*
            }

            impl $crate::config::schema::Section for $name {
                const SCHEMA: $crate::config::schema::Schema = $crate::config::schema::Schema {
                    fields: &[$($crate::config::schema::Field {
                        key: stringify!($key),
                        about: &[$($doc),+],
                        of: stringify!($type),
                        kind: <$type as $crate::config::schema::Item>::KIND,
                        fallback: $fallback,
                    }),*],
                };
            }

            impl $crate::config::schema::Item for $name {
                const KIND: $crate::config::schema::Kind =
                    $crate::config::schema::Kind::Section(&<$name as $crate::config::schema::Section>::SCHEMA);
            }

            impl $crate::config::schema::Item for Option<$name> {
                const KIND: $crate::config::schema::Kind = <$name as $crate::config::schema::Item>::KIND;
            }

            impl $crate::config::schema::Item for Vec<$name> {
                const KIND: $crate::config::schema::Kind =
                    $crate::config::schema::Kind::List(&<$name as $crate::config::schema::Section>::SCHEMA);
            }
        )*
    };
}

pub(super) use section;
