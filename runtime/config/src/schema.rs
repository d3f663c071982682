//! The schema of a config as data: sections, keys, defaults and descriptions.
//!
//! [`section!`] makes the typed sections from the same lines. So a new key takes one line, and
//! reading, checking, showing and the template all use it.

use std::collections::BTreeMap;

use toml::Value;

/// The value of one key.
pub(super) trait Leaf: Sized {
    /// The valid words, if it is a choice.
    const CHOICES: &'static [&'static str] = &[];

    /// Reads a value. The error says what is valid and what was found.
    fn read(value: &Value) -> Result<Self, String>;
}

/// The keys of a table.
#[derive(Debug)]
pub(super) struct ConfigSchema {
    /// The keys in the order in which they are shown.
    pub fields: &'static [Field],
}

/// The definition of one key.
#[derive(Debug)]
pub(super) struct Field {
    pub key: &'static str,
    /// The earlier spelling of the key, which files may still have.
    pub alias: Option<&'static str>,
    /// The purpose of the key, as lines of a comment.
    pub about: &'static [&'static str],
    /// The type of the key, as written in Rust.
    pub of: &'static str,
    pub kind: KeyKind,
    pub fallback: Fallback,
}

/// The form of a key's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyKind {
    /// A single value.
    Leaf { check: fn(&Value) -> Result<(), String>, choices: &'static [&'static str] },
    /// A table with a schema.
    Section(&'static ConfigSchema),
    /// An array of tables.
    List(&'static ConfigSchema),
    /// A table with keys of the user's choice and text values.
    Texts,
}

/// The value of a key that is not given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// This default, in TOML.
    Is(&'static str),
    /// The key is required. An example in TOML.
    Required(&'static str),
    /// There is no value. An example in TOML.
    Absent(&'static str),
    /// A section with its own defaults.
    Section,
    /// No section unless one is given, which then has its own defaults.
    Optional,
    /// No elements. The template contains these, as keys with values in TOML.
    Elements(&'static [&'static [(&'static str, &'static str)]]),
    /// No elements. The template contains these, commented out.
    Examples(&'static [&'static [(&'static str, &'static str)]]),
}

/// A type of a key's field.
pub(super) trait KeyType {
    const KIND: KeyKind;
}

fn check<T: Leaf>(value: &Value) -> Result<(), String> {
    T::read(value).map(drop)
}

impl<T: Leaf> KeyType for T {
    const KIND: KeyKind = KeyKind::Leaf { check: check::<T>, choices: T::CHOICES };
}

impl<T: Leaf> KeyType for Option<T> {
    const KIND: KeyKind = KeyKind::Leaf { check: check::<T>, choices: T::CHOICES };
}

impl KeyType for BTreeMap<String, String> {
    const KIND: KeyKind = KeyKind::Texts;
}

/// The earlier spelling in a list of one or none.
pub(super) const fn alias(spellings: &[&'static str]) -> Option<&'static str> {
    match spellings {
        [] => None,
        [spelling, ..] => Some(spelling),
    }
}

/// A typed section with a schema.
pub(super) trait ConfigSection {
    const SCHEMA: ConfigSchema;
}

impl ConfigSchema {
    /// The field with this key, or with this earlier spelling of it.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key || field.alias == Some(key))
    }
}

/// Makes a typed section and its schema from lines `key: Type = fallback;`. Their doc comments
/// become the template's comments. A key with an earlier spelling ends its line with
/// `, alias "spelling";`.
macro_rules! section {
    ($($(#[doc = $about:literal])+ $name:ident {
        $(
            $(#[doc = $doc:literal])+
            $key:ident: $type:ty = $fallback:expr $(, alias $alias:literal)?;
        )*
    })*) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[doc = $doc])+ pub $key: $type,)*
            }

            impl $crate::config::schema::ConfigSection for $name {
                const SCHEMA: $crate::config::schema::ConfigSchema =
                    $crate::config::schema::ConfigSchema {
                    fields: &[$($crate::config::schema::Field {
                        key: stringify!($key),
                        alias: $crate::config::schema::alias(&[$($alias)?]),
                        about: &[$($doc),+],
                        of: stringify!($type),
                        kind: <$type as $crate::config::schema::KeyType>::KIND,
                        fallback: $fallback,
                    }),*],
                };
            }

            impl $crate::config::schema::KeyType for $name {
                const KIND: $crate::config::schema::KeyKind =
                    $crate::config::schema::KeyKind::Section(
                        &<$name as $crate::config::schema::ConfigSection>::SCHEMA,
                    );
            }

            impl $crate::config::schema::KeyType for Option<$name> {
                const KIND: $crate::config::schema::KeyKind =
                    <$name as $crate::config::schema::KeyType>::KIND;
            }

            impl $crate::config::schema::KeyType for Vec<$name> {
                const KIND: $crate::config::schema::KeyKind = $crate::config::schema::KeyKind::List(
                    &<$name as $crate::config::schema::ConfigSection>::SCHEMA,
                );
            }
        )*
    };
}

pub(super) use section;
