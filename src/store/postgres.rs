//! placeholder

pub struct PostgresStore;
impl PostgresStore {
    pub async fn open_with_fingerprinter_bits(
        _: &str,
        _: &crate::config::PostgresConfig,
        _: Option<u32>,
    ) -> super::Result<std::sync::Arc<super::sqlite::SqliteStore>> {
        unreachable!()
    }
}
