//! Lists: how a page of one is asked for, and how one is read to its end.

use super::Result;

/// Asks for a page of a list, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query<Filter, Cursor = u64> {
    /// Which records are listed.
    pub filter: Filter,
    /// The last record of the page before.
    pub after: Option<Cursor>,
    pub limit: usize,
}

impl<Filter, Cursor> Query<Filter, Cursor> {
    /// The first page.
    pub fn first(filter: Filter, limit: usize) -> Self {
        Self { filter, after: None, limit }
    }
}

/// Records on a page of jobs.
pub const PAGE: usize = 1_000;

/// Reads a list to its end, page by page: no statement reads for longer than its time limit.
pub async fn read_all<Filter, Cursor, Record, Page>(
    filter: Filter,
    cursor: impl Fn(&Record) -> Cursor,
    list: impl Fn(Query<Filter, Cursor>) -> Page,
) -> Result<Vec<Record>>
where
    Filter: Clone,
    Page: Future<Output = Result<Vec<Record>>>,
{
    let mut records = Vec::new();
    loop {
        let after = records.last().map(&cursor);
        let page = list(Query { filter: filter.clone(), after, limit: PAGE }).await?;
        let ended = page.len() < PAGE;
        records.extend(page);
        if ended {
            return Ok(records);
        }
    }
}
