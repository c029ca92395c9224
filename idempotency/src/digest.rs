//! SHA-256 over fields, and its hex.
//!
//! Invariant: each field is preceded by its length, so that no two lists of fields make the same
//! bytes.

use sha2::{Digest, Sha256};

/// The digest of the fields; the first is a tag that tells what is digested.
pub(crate) fn digest_fields<'f>(fields: impl IntoIterator<Item = &'f [u8]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for field in fields {
        let length = u64::try_from(field.len()).expect("a length fits into 64 bits");
        digest.update(length.to_be_bytes());
        digest.update(field);
    }
    digest.finalize().into()
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
