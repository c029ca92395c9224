//! SHA-256 over fields, and its hex.
//!
//! Invariant: each field is preceded by its length, so that no two lists of fields make the same
//! bytes: joined texts would ("a:b" and "c" are "a" and "b:c").

use sha2::{Digest, Sha256};

/// The digest of the fields; the first is a tag that tells what is digested.
pub fn digest_fields<'f>(fields: impl IntoIterator<Item = &'f [u8]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for field in fields {
        let length = u64::try_from(field.len()).expect("a length fits into 64 bits");
        digest.update(length.to_be_bytes());
        digest.update(field);
    }
    digest.finalize().into()
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_together() {
        let digest = |fields: &[&str]| hex(&digest_fields(fields.iter().map(|f| f.as_bytes())));
        assert_ne!(digest(&["a:b", "c"]), digest(&["a", "b:c"]));
        assert_ne!(digest(&["ab", ""]), digest(&["a", "b"]));
        assert_eq!(digest(&["a"]).len(), 64);
    }
}
