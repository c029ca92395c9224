//! Items in the form in which most senders write them, read without serde_json.
//!
//! Invariant: what is read here is valid JSON, and serde_json makes the same items of it. Whatever
//! is unusual is left to serde_json, and so is every error: escapes, exponents, nested values, and
//! anything that is not JSON. So this decides nothing; it is only faster.

use super::Item;

/// Reads a whole text as one item. None if serde_json has to.
pub fn read_item(text: &str) -> Option<Item<'_>> {
    let mut reader = Reader { text, at: 0 };
    let item = reader.item()?;
    reader.ends().then_some(item)
}

/// Reads a whole text as an array of at most so many items. None if serde_json has to.
pub fn read_items(text: &str, items_max: usize) -> Option<Vec<Item<'_>>> {
    let mut reader = Reader { text, at: 0 };
    reader.expect(b'[')?;
    let mut items = Vec::new();
    loop {
        if items.len() == items_max {
            return None;
        }
        items.push(reader.item()?);
        match reader.next()? {
            b',' => {}
            b']' => return reader.ends().then_some(items),
            _ => return None,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn item(&mut self) -> Option<Item<'a>> {
        let mut item = Item::default();
        self.members(|reader, name| {
            let value = match reader.peek()? {
                b'{' => reader.flat_object()?,
                _ => reader.scalar()?,
            };
            item.take(name, value);
            Some(())
        })?;
        Some(item)
    }

    /// An object of scalars, as it is written.
    fn flat_object(&mut self) -> Option<&'a str> {
        self.peek()?;
        let start = self.at;
        self.members(|reader, _| reader.scalar().map(drop))?;
        self.text.get(start..self.at)
    }

    /// Reads an object that has members, of which `value` reads each value.
    fn members(&mut self, mut value: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        loop {
            self.peek()?;
            let name = self.string()?;
            self.expect(b':')?;
            value(self, name.get(1..name.len() - 1)?)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// A string, a plain number or a literal, as it is written.
    fn scalar(&mut self) -> Option<&'a str> {
        let first = self.peek()?;
        let rest = &self.text[self.at..];
        let length = match first {
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => plain_number(rest.as_bytes())?,
            _ => ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word))?.len(),
        };
        self.at += length;
        Some(&rest[..length])
    }

    /// A string without escapes, with its quotes.
    fn string(&mut self) -> Option<&'a str> {
        let rest = self.text.get(self.at..)?;
        let inner = rest.strip_prefix('"')?;
        let end = first_special(inner.as_bytes())?;
        if inner.as_bytes()[end] != b'"' {
            return None;
        }
        self.at += end + 2;
        Some(&rest[..end + 2])
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// The next byte that is no blank, which is passed.
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Passes blanks.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.as_bytes().get(self.at)?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn ends(&mut self) -> bool {
        self.peek().is_none()
    }
}

/// The length of a number without exponent.
fn plain_number(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let start = usize::from(text.first() == Some(&b'-'));
    let whole = digits(start);
    if whole == 0 || (whole > 1 && text[start] == b'0') {
        return None;
    }
    let mut end = start + whole;
    if text.get(end) == Some(&b'.') {
        let decimals = digits(end + 1);
        if decimals == 0 {
            return None;
        }
        end += 1 + decimals;
    }
    // An exponent is left to serde_json.
    (!matches!(text.get(end), Some(b'e' | b'E'))).then_some(end)
}

/// The place of the first quote, backslash or control character, by eight bytes at once.
fn first_special(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The lowest bit that is set marks a byte that is zero; those above it may be wrong.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let (words, tail) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let quote = zeros(word ^ (ONES * u64::from(b'"')));
        let backslash = zeros(word ^ (ONES * u64::from(b'\\')));
        let found = (control | quote | backslash) & HIGHS;
        if found != 0 {
            let byte = usize::try_from(found.trailing_zeros() / 8).expect("less than eight");
            return Some(place * 8 + byte);
        }
    }
    let special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    tail.iter().position(special).map(|place| words.len() * 8 + place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Texts that are nearly items: pieces of JSON in an order that is often right.
    fn any_text() -> impl Strategy<Value = String> {
        let value = prop::sample::select(vec![
            "\"acme\"",
            "\"é\"",
            "\"\"",
            "\"a\\u0041\"",
            "\"a\nb\"",
            "1",
            "-1",
            "0",
            "-0",
            "01",
            "1.5",
            "1.",
            ".5",
            "1e3",
            "1E+2",
            "-",
            "true",
            "false",
            "null",
            "nul",
            "{}",
            "[]",
            "{\"a\":1}",
            "{\"a\":\"b\",\"c\":true}",
            "{\"a\":{}}",
            "{\"a\":[1]}",
            "{\"a\" : 1 , \"b\":\"\\\\\"}",
        ]);
        let name = prop::sample::select(vec![
            "tenant",
            "id",
            "meter",
            "quantity",
            "occurred_at",
            "properties",
            "trial",
            "subscription",
            "correlation_id",
            "source",
            "subject",
            "specversion",
            "data",
            "other",
        ]);
        let blank = prop::sample::select(vec!["", "", "", " ", "\n\t", "\u{a0}"]);
        let pair =
            (name, value, blank.clone()).prop_map(|(n, v, b)| format!("{b}\"{n}\"{b}:{b}{v}"));
        let object = proptest::collection::vec(pair, 0..5)
            .prop_map(|pairs| format!("{{{}}}", pairs.join(",")));
        let ends = prop::sample::select(vec!["", "", "", " ", ",", "x", "]"]);
        prop_oneof![
            (object.clone(), ends.clone()).prop_map(|(object, end)| format!("{object}{end}")),
            (proptest::collection::vec(object, 0..5), ends, blank).prop_map(
                |(objects, end, blank)| { format!("[{blank}{}{blank}]{end}", objects.join(",")) }
            ),
        ]
    }

    fn same(ours: &Item<'_>, theirs: &Item<'_>) {
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_serde_reads(text in any_text()) {
            if let Some(item) = read_item(&text) {
                same(&item, &serde_json::from_str(&text).expect("JSON"));
            }
            if let Some(items) = read_items(&text, 100) {
                let theirs: Vec<Item<'_>> = serde_json::from_str(&text).expect("JSON");
                assert_eq!(items.len(), theirs.len());
                items.iter().zip(&theirs).for_each(|(ours, theirs)| same(ours, theirs));
            }
        }

        #[test]
        fn any_text_is_read_or_left(text in "\\PC{0,40}") {
            let _ = (read_item(&text), read_items(&text, 2));
        }

        #[test]
        fn special_bytes_are_found(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
            prop_assert_eq!(first_special(&bytes), bytes.iter().position(special));
        }
    }

    #[test]
    fn the_usual_is_read_here() {
        let usual = r#"{"tenant":"acme","id":"e1","meter":"calls","quantity":1.5,
            "occurred_at": "2026-11-15T12:00:00Z", "properties": {"a":"b", "c": true}}"#;
        assert!(read_item(usual).is_some());
        assert_eq!(read_items(&format!("[{usual},{usual}]"), 2).map(|items| items.len()), Some(2));
        assert!(read_items(&format!("[{usual},{usual}]"), 1).is_none(), "one too many");
        for unusual in ["[]", "{}", "[{}]", "", "[", r#"{"a":1"#, r#"{"a":1}}"#] {
            assert!(read_item(unusual).is_none() && read_items(unusual, 2).is_none(), "{unusual}");
        }
    }
}
