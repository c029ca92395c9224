//! Rejections: pushes that the provider took and then refused, as its reports say.
//!
//! Invariant: pushes are locked first, in the order of their numbers, as in `settlements`; what a
//! report means for each is planned by `rules::rejection`.
//!
//! A crash leaves all of a call or nothing. A call that is repeated finds the pushes dead, and
//! those to be looked for due, and changes nothing.

use super::PostgresStore;
use super::push_rows::{change_pushes, log_lines, read_pushes};
use super::scalars::{SqlTimestamp, column, meter_number};
use super::transaction::{Done, Transaction};
use crate::rules::rejection::{Rejection, RejectionReport};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::plan_reported;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;

impl PostgresStore {
    pub(super) async fn reject(
        &self,
        rejection: &Rejection,
        at: Timestamp,
    ) -> Result<RejectionReport> {
        let work = move |client: Arc<Transaction>| async move {
            let numbers = lock_concerned(&client, rejection).await?;
            let concerned = read_pushes(&client, &numbers).await?;
            let (report, changes) = plan_reported(rejection, concerned, at)?;
            Ok((report, change_pushes(&client, &changes, at).await?))
        };
        let (report, lines) = self.transact(work).await?;
        log_lines(&lines);
        Ok(report)
    }
}

/// Locks the pushes that are named, and the meter's others that were taken within the window.
async fn lock_concerned(client: &ClientWrapper, rejection: &Rejection) -> Done<Vec<i64>> {
    let sql = "-- lock_concerned
        SELECT push_no FROM pushes
        WHERE push_no IN (
            SELECT push_no FROM pushes WHERE key = ANY ($1)
            UNION ALL
            SELECT push_no FROM pushes
            WHERE state = 'submitted' AND meter_no = $2 AND state_at >= $3 AND state_at < $4
        )
        ORDER BY push_no FOR UPDATE";
    let keys: Vec<&str> = rejection.first_samples().into_keys().collect();
    let meter = rejection.recheck.map(|(meter, _)| meter_number(meter));
    let start = rejection.recheck.map(|(_, window)| SqlTimestamp(window.start));
    let end = rejection.recheck.map(|(_, window)| SqlTimestamp(window.end));
    let rows = client.query(sql, &[&keys, &meter, &start, &end]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}
