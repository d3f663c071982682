//! The decoder of MessagePack: values of any type from bytes.
//!
//! It reads what rmp-serde writes, and refuses what the decoder of rmp-serde refuses. The
//! exception: the elements of a byte string may be any type made of a number.
//!
//! It exists for the size of programs. rmp-serde compiles its decoder of all of MessagePack for
//! each type. This one compiles for a type only what the type can be: [`Reader::start`] reads
//! bytes, and is compiled once.
//!
//! Format: the MessagePack specification of 2013, without its extension types.

use std::fmt::Display;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};

/// The reason why bytes are not a value of a type.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The bytes end before the value does.
    #[error("the value ends early")]
    Truncated,
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

impl serde::de::Error for ReadError {
    fn custom<T: Display>(reason: T) -> Self {
        Self::Other(reason.to_string())
    }
}

/// The start of a value. The elements of arrays and maps follow it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ValueStart<'de> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// A negative number, or one that its sender wrote as a signed one.
    Signed(i64),
    Single(f32),
    Double(f64),
    Str(&'de str),
    Bytes(&'de [u8]),
    /// The number of elements.
    Array(u32),
    /// The number of keys, each of which has a value.
    Map(u32),
}

/// A position in bytes.
#[derive(Debug)]
pub(super) struct Reader<'de> {
    /// The bytes that are not read yet.
    rest: &'de [u8],
    /// Whether each byte is a value: these are the elements of a byte string, read as an array.
    are_bare: bool,
}

impl<'de> Reader<'de> {
    /// A reader of one value. The caller has checked the depth of its nesting.
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self { rest: bytes, are_bare: false }
    }

    fn take(&mut self, count: usize) -> Result<&'de [u8], ReadError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(ReadError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const WIDTH: usize>(&mut self) -> Result<[u8; WIDTH], ReadError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(ReadError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the length of a string, an array or a map from this number of bytes.
    fn length(&mut self, width: u8) -> Result<u32, ReadError> {
        Ok(match width {
            1 => u32::from(self.number::<1>()?[0]),
            2 => u16::from_be_bytes(self.number()?).into(),
            _ => u32::from_be_bytes(self.number()?),
        })
    }

    fn text(&mut self, len: u32) -> Result<ValueStart<'de>, ReadError> {
        let bytes = self.take(len as usize)?;
        let text = std::str::from_utf8(bytes);
        text.map(ValueStart::Str).map_err(|error| ReadError::Other(format!("a string has {error}")))
    }

    /// Reads the start of a value; all of it unless it is an array or a map.
    fn start(&mut self) -> Result<ValueStart<'de>, ReadError> {
        let [marker] = self.number()?;
        if self.are_bare {
            return Ok(ValueStart::Unsigned(marker.into()));
        }
        Ok(match marker {
            0x00..=0x7f => ValueStart::Unsigned(marker.into()),
            0xe0..=0xff => ValueStart::Signed(marker.cast_signed().into()),
            0x80..=0x8f => ValueStart::Map((marker & 0x0f).into()),
            0x90..=0x9f => ValueStart::Array((marker & 0x0f).into()),
            0xa0..=0xbf => self.text((marker & 0x1f).into())?,
            0xc0 => ValueStart::Nil,
            0xc2 | 0xc3 => ValueStart::Bool(marker == 0xc3),
            0xc4..=0xc6 => {
                let len = self.length(1 << (marker - 0xc4))?;
                ValueStart::Bytes(self.take(len as usize)?)
            }
            0xca => ValueStart::Single(f32::from_be_bytes(self.number()?)),
            0xcb => ValueStart::Double(f64::from_be_bytes(self.number()?)),
            0xcc => ValueStart::Unsigned(u8::from_be_bytes(self.number()?).into()),
            0xcd => ValueStart::Unsigned(u16::from_be_bytes(self.number()?).into()),
            0xce => ValueStart::Unsigned(u32::from_be_bytes(self.number()?).into()),
            0xcf => ValueStart::Unsigned(u64::from_be_bytes(self.number()?)),
            0xd0 => ValueStart::Signed(i8::from_be_bytes(self.number()?).into()),
            0xd1 => ValueStart::Signed(i16::from_be_bytes(self.number()?).into()),
            0xd2 => ValueStart::Signed(i32::from_be_bytes(self.number()?).into()),
            0xd3 => ValueStart::Signed(i64::from_be_bytes(self.number()?)),
            0xd9..=0xdb => {
                let len = self.length(1 << (marker - 0xd9))?;
                self.text(len)?
            }
            0xdc | 0xdd => ValueStart::Array(self.length(2 << (marker - 0xdc))?),
            0xde | 0xdf => ValueStart::Map(self.length(2 << (marker - 0xde))?),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => {
                return Err(ReadError::Other(format!("no value starts with byte {marker:#x}")));
            }
        })
    }

    /// Skips a value with its elements.
    fn skip(&mut self) -> Result<(), ReadError> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            left += match self.start()? {
                ValueStart::Array(len) => len.into(),
                ValueStart::Map(len) => 2 * u64::from(len),
                _ => 0,
            };
        }
        Ok(())
    }

    fn array<V: Visitor<'de>>(&mut self, len: u32, visitor: V) -> Result<V::Value, ReadError> {
        let mut elements = Elements { reader: self, left: len };
        let value = visitor.visit_seq(&mut elements)?;
        elements.check_end(len)?;
        Ok(value)
    }

    fn map<V: Visitor<'de>>(&mut self, len: u32, visitor: V) -> Result<V::Value, ReadError> {
        let mut entries = Elements { reader: self, left: len };
        let value = visitor.visit_map(&mut entries)?;
        entries.check_end(len)?;
        Ok(value)
    }

    fn sequence<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Array(len) => self.array(len, visitor),
            ValueStart::Bytes(bytes) => {
                let mut elements = Reader { rest: bytes, are_bare: true };
                elements.array(bytes.len() as u32, visitor)
            }
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn integer<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Unsigned(number) => visitor.visit_u64(number),
            ValueStart::Signed(number) => visitor.visit_i64(number),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn float<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Single(number) => visitor.visit_f32(number),
            ValueStart::Double(number) => visitor.visit_f64(number),
            ValueStart::Unsigned(number) => visitor.visit_u64(number),
            ValueStart::Signed(number) => visitor.visit_i64(number),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn string<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Str(text) => visitor.visit_borrowed_str(text),
            ValueStart::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            other => Err(mismatch(other, &visitor)),
        }
    }

    /// Numbers of 128 bits are byte strings, the most significant byte first.
    fn wide(&mut self, expected: &dyn Expected) -> Result<[u8; 16], ReadError> {
        let start = self.start()?;
        match start {
            ValueStart::Bytes(bytes) => bytes.try_into().map_err(|_| mismatch(start, expected)),
            other => Err(mismatch(other, expected)),
        }
    }
}

fn mismatch(start: ValueStart<'_>, expected: &dyn Expected) -> ReadError {
    let found = match start {
        ValueStart::Nil => Unexpected::Unit,
        ValueStart::Bool(value) => Unexpected::Bool(value),
        ValueStart::Unsigned(number) => Unexpected::Unsigned(number),
        ValueStart::Signed(number) => Unexpected::Signed(number),
        ValueStart::Single(number) => Unexpected::Float(number.into()),
        ValueStart::Double(number) => Unexpected::Float(number),
        ValueStart::Str(text) => Unexpected::Str(text),
        ValueStart::Bytes(bytes) => Unexpected::Bytes(bytes),
        ValueStart::Array(_) => Unexpected::Seq,
        ValueStart::Map(_) => Unexpected::Map,
    };
    ReadError::invalid_type(found, expected)
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = ReadError;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Nil => visitor.visit_unit(),
            ValueStart::Bool(value) => visitor.visit_bool(value),
            ValueStart::Unsigned(number) => visitor.visit_u64(number),
            ValueStart::Signed(number) => visitor.visit_i64(number),
            ValueStart::Single(number) => visitor.visit_f32(number),
            ValueStart::Double(number) => visitor.visit_f64(number),
            ValueStart::Str(text) => visitor.visit_borrowed_str(text),
            ValueStart::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            ValueStart::Array(len) => self.array(len, visitor),
            ValueStart::Map(len) => self.map(len, visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Bool(value) => visitor.visit_bool(value),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.integer(visitor)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let bytes = self.wide(&visitor)?;
        visitor.visit_i128(i128::from_be_bytes(bytes))
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let bytes = self.wide(&visitor)?;
        visitor.visit_u128(u128::from_be_bytes(bytes))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.float(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.float(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.string(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.string(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            ValueStart::Str(text) => visitor.visit_borrowed_str(text),
            ValueStart::Array(len) => self.array(len, visitor),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        if !self.are_bare && self.rest.first() == Some(&0xc0) {
            self.start()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Nil => visitor.visit_unit(),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Nil | ValueStart::Array(0) => visitor.visit_unit(),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.sequence(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.sequence(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.sequence(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Map(len) => self.map(len, visitor),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Array(len) => self.array(len, visitor),
            ValueStart::Map(len) => self.map(len, visitor),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let before = self.rest;
        let has_content = match self.start()? {
            ValueStart::Map(1) => true,
            ValueStart::Str(_) | ValueStart::Bytes(_) => false,
            ValueStart::Unsigned(_) if !self.are_bare => false,
            other => return Err(mismatch(other, &visitor)),
        };
        if !has_content {
            self.rest = before;
        }
        visitor.visit_enum(Variant { reader: self, has_content })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.start()? {
            ValueStart::Str(text) => visitor.visit_borrowed_str(text),
            ValueStart::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            ValueStart::Unsigned(number) => visitor.visit_u64(number),
            other => Err(mismatch(other, &visitor)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.skip()?;
        visitor.visit_unit()
    }
}

/// The elements of an array or a map.
struct Elements<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: u32,
}

impl Elements<'_, '_> {
    fn check_end(&self, len: u32) -> Result<(), ReadError> {
        if self.left == 0 {
            return Ok(());
        }
        let read = (len - self.left) as usize;
        Err(ReadError::invalid_length(len as usize, &format!("{read} elements").as_str()))
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

/// A variant of an enum: its name, and its content if it has some.
struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
    has_content: bool,
}

impl Variant<'_, '_> {
    fn check_content(&self, expected: &str) -> Result<(), ReadError> {
        if self.has_content {
            return Ok(());
        }
        Err(ReadError::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> EnumAccess<'de> for Variant<'_, 'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ReadError> {
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        if !self.has_content {
            return Ok(());
        }
        match self.reader.start()? {
            ValueStart::Nil => Ok(()),
            other => Err(mismatch(other, &"nil, the content of a variant without fields")),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ReadError> {
        self.check_content("a variant with a value")?;
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.check_content("a variant with values")?;
        self.reader.sequence(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.check_content("a variant with fields")?;
        self.reader.deserialize_struct("", fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use proptest::prelude::*;
    use serde::de::{DeserializeOwned, IgnoredAny};
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::wire::scan::scan;

    /// A value of each kind that types of messages are made of.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Everything {
        small: (u8, u16, u32, u64),
        signed: (i8, i16, i32, i64),
        wide: (i128, u128),
        floats: (f32, f64),
        truth: bool,
        letter: char,
        text: String,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        list: Vec<u8>,
        maybe: Option<Option<u16>>,
        nothing: (),
        unit: UnitStruct,
        wrapped: Wrapped,
        pair: Pair,
        shapes: Vec<Shape>,
        by_number: BTreeMap<i16, String>,
        by_shape: BTreeMap<Letter, u8>,
        free: serde_json::Value,
        untagged: Untagged,
        tagged: Tagged,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rare: Option<u8>,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct UnitStruct;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(String);

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(u8, Option<Box<Pair>>);

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    enum Letter {
        A,
        B,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Dot,
        Circle(f64),
        Box(u8, u8),
        Text { at: (i8, i8), text: String },
        Group(Vec<Shape>),
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(i32),
        Text(String),
        List(Vec<u8>),
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Empty,
        Full { size: u32 },
    }

    fn shape() -> impl Strategy<Value = Shape> {
        let leaf = prop_oneof![
            Just(Shape::Dot),
            (-1e9..1e9).prop_map(Shape::Circle),
            any::<(u8, u8)>().prop_map(|(width, height)| Shape::Box(width, height)),
            (any::<(i8, i8)>(), ".*").prop_map(|(at, text)| Shape::Text { at, text }),
        ];
        leaf.prop_recursive(3, 12, 4, |child| {
            prop::collection::vec(child, 0..4).prop_map(Shape::Group)
        })
    }

    fn free() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            (-1e9..1e9).prop_map(|number: f64| number.into()),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 12, 4, |child| {
            prop_oneof![
                prop::collection::vec(child.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec((".*", child), 0..4)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn everything() -> impl Strategy<Value = Everything> {
        let numbers = (
            any::<(u8, u16, u32, u64)>(),
            any::<(i8, i16, i32, i64)>(),
            any::<(i128, u128)>(),
            (-1e9f32..1e9, -1e9f64..1e9),
            any::<bool>(),
        );
        let texts = (any::<char>(), ".*", any::<Vec<u8>>(), any::<Vec<u8>>(), ".*");
        let options = (any::<Option<u16>>(), any::<u8>(), any::<Option<u8>>(), any::<Option<u8>>());
        let many = (
            prop::collection::vec(shape(), 0..4),
            any::<BTreeMap<i16, String>>(),
            any::<[Option<u8>; 2]>(),
            free(),
        );
        let enums = prop_oneof![
            any::<i32>().prop_map(Untagged::Number),
            ".*".prop_map(Untagged::Text),
            any::<Vec<u8>>().prop_map(Untagged::List),
        ];
        (numbers, texts, options, many, enums, any::<Option<u32>>()).prop_map(
            |(numbers, texts, (maybe, first, second, rare), many, untagged, size)| {
                let (small, signed, wide, floats, truth) = numbers;
                let (letter, text, bytes, list, wrapped) = texts;
                let (shapes, by_number, letters, free) = many;
                let by_shape = [Letter::A, Letter::B].into_iter().zip(letters);
                Everything {
                    small,
                    signed,
                    wide,
                    floats,
                    truth,
                    letter,
                    text,
                    bytes,
                    list,
                    maybe: maybe.map(Some),
                    nothing: (),
                    unit: UnitStruct,
                    wrapped: Wrapped(wrapped),
                    pair: Pair(first, second.map(|second| Box::new(Pair(second, None)))),
                    shapes,
                    by_number,
                    by_shape: by_shape.filter_map(|(key, value)| Some((key, value?))).collect(),
                    free,
                    untagged,
                    tagged: size.map_or(Tagged::Empty, |size| Tagged::Full { size }),
                    rare,
                }
            },
        )
    }

    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReadError> {
        T::deserialize(&mut Reader::new(bytes))
    }

    /// Checks that what is read from valid MessagePack is what rmp-serde reads from it.
    fn agrees<T: DeserializeOwned + Debug + PartialEq>(bytes: &[u8]) {
        if scan(bytes).is_ok()
            && let Ok(value) = read::<T>(bytes)
        {
            assert_eq!(rmp_serde::from_slice::<T>(bytes).unwrap(), value, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn values_of_rmp_serde_are_read(value in everything()) {
            for bytes in [
                rmp_serde::to_vec_named(&value).unwrap(),
                rmp_serde::to_vec(&value).unwrap(),
            ] {
                prop_assert_eq!(&read::<Everything>(&bytes).unwrap(), &value);
                read::<IgnoredAny>(&bytes).unwrap();
                // The value is complete: nothing is read beyond it, and nothing is left.
                let more = [&bytes[..], &[1]].concat();
                let mut reader = Reader::new(&more);
                Everything::deserialize(&mut reader).unwrap();
                prop_assert_eq!(reader.rest, &[1]);
                let short = read::<Everything>(&bytes[..bytes.len() - 1]);
                prop_assert!(short.is_err(), "{:?}", short);
            }
        }

        #[test]
        fn what_is_read_of_changed_bytes_is_what_rmp_serde_reads(
            value in everything(),
            is_named: bool,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let bytes =
                if is_named { rmp_serde::to_vec_named(&value) } else { rmp_serde::to_vec(&value) };
            let mut bytes = bytes.unwrap();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            agrees::<Everything>(&bytes);
            agrees::<serde_json::Value>(&bytes);
        }

        #[test]
        fn what_is_read_of_random_bytes_is_what_rmp_serde_reads(
            bytes in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            agrees::<Shape>(&bytes);
            agrees::<Pair>(&bytes);
            agrees::<Untagged>(&bytes);
            agrees::<Option<f64>>(&bytes);
            agrees::<(u8, String)>(&bytes);
            agrees::<Vec<u8>>(&bytes);
            agrees::<Vec<Letter>>(&bytes);
            agrees::<BTreeMap<String, i64>>(&bytes);
            agrees::<serde_bytes::ByteBuf>(&bytes);
        }
    }

    #[test]
    fn a_byte_string_is_a_list_of_numbers() {
        assert_eq!(read::<Vec<u16>>(b"\xc4\x03\x00\xc0\xff").unwrap(), [0, 0xc0, 0xff]);
        assert_eq!(read::<[Option<u8>; 2]>(b"\xc4\x02\xc0\x01").unwrap(), [Some(0xc0), Some(1)]);
        assert!(read::<Vec<String>>(b"\xc4\x01a").is_err());
        // As rmp-serde, which reads the number of a variant elsewhere.
        assert!(read::<Vec<Letter>>(b"\xc4\x01\x00").is_err());
        assert_eq!(read::<Vec<Letter>>(b"\x91\x00").unwrap(), [Letter::A]);
        assert!(read::<[u8; 2]>(b"\xc4\x03abc").is_err());
    }

    #[test]
    fn reasons_name_what_was_found_and_expected() {
        let reason = |error: ReadError| error.to_string();
        assert_eq!(
            reason(read::<u8>(b"\xa1x").unwrap_err()),
            "invalid type: string \"x\", expected u8"
        );
        assert_eq!(
            reason(read::<u8>(b"\xcd\x01\x00").unwrap_err()),
            "invalid value: integer `256`, expected u8"
        );
        assert_eq!(
            reason(read::<Shape>(b"\xa6Circle").unwrap_err()),
            "invalid type: unit variant, expected a variant with a value"
        );
        assert_eq!(
            reason(read::<(u8,)>(b"\x92\x01\x02").unwrap_err()),
            "invalid length 2, expected 1 elements"
        );
        assert_eq!(
            reason(read::<u8>(b"\xd4\x01\x02").unwrap_err()),
            "no value starts with byte 0xd4"
        );
    }
}
