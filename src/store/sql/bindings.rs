//! Bindings to accounts of the provider.
//!
//! Invariant: at most one binding has not ended, by a unique index; of two servers that bind at
//! once the second finds the binding of the first. A crash leaves all of a call or nothing, and
//! every call may be repeated.

use super::{Done, Row, Session, SqlStore, values};
use crate::rules::binding::{BillingAccount, Binding, Unbinding};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::binding::Bindings;
use async_trait::async_trait;

const STANDING: &str = "-- read_binding
    SELECT binding, provider, account, live, bound_at FROM bindings WHERE ended_at IS NULL";

#[async_trait]
impl<S: SqlStore> Bindings for S {
    async fn read_binding(&self) -> Result<Option<Binding>> {
        self.in_reader(|session| session.read_optional(STANDING, &[], decode_binding)).await
    }

    async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding> {
        let account = account.clone();
        self.in_transaction(move |session| bind(session, &account, at)).await
    }

    async fn end_binding(&self, at: Timestamp) -> Result<Unbinding> {
        self.in_transaction(move |session| end_binding(session, at)).await
    }
}

fn bind(session: &dyn Session, account: &BillingAccount, at: Timestamp) -> Done<Binding> {
    let BillingAccount { provider, id, live } = account;
    let sql = "-- bind
        INSERT INTO bindings (binding, provider, account, live, bound_at)
        SELECT COALESCE(max(binding), 0) + 1, $1, $2, $3, $4 FROM bindings WHERE true
        ON CONFLICT DO NOTHING";
    session.run(sql, values![provider, id, live, at])?;
    let standing = session.read_one(STANDING, &[], decode_binding)?;
    if standing.account.id.is_some() || id.is_none() || !standing.account.admits(account) {
        return Ok(standing);
    }
    let sql = "-- keep_account
        UPDATE bindings SET account = COALESCE(account, $1) WHERE ended_at IS NULL";
    session.run(sql, values![id])?;
    session.read_one(STANDING, &[], decode_binding)
}

fn end_binding(session: &dyn Session, at: Timestamp) -> Done<Unbinding> {
    let Some(standing) = session.read_optional(STANDING, &[], decode_binding)? else {
        return Ok(Unbinding::Unbound);
    };
    // Pushes that were sent and are neither confirmed nor decided.
    let sql = "-- count_unsettled
        SELECT count(*) AS unsettled FROM pushes
        WHERE NOT shadow AND (state = 'submitted'
            OR (state = 'observed' AND first_attempt_at IS NOT NULL))";
    let unsettled: u64 = session.read_one(sql, &[], Row::only)?;
    if unsettled > 0 {
        return Ok(Unbinding::Unsettled(unsettled));
    }
    let sql = "-- end_binding
        UPDATE bindings SET ended_at = $1 WHERE ended_at IS NULL";
    session.run(sql, values![at])?;
    Ok(Unbinding::Ended(standing))
}

fn decode_binding(row: &Row) -> Result<Binding> {
    let account = BillingAccount {
        provider: row.get("bindings.provider")?,
        id: row.get("bindings.account")?,
        live: row.get("bindings.live")?,
    };
    let (number, bound_at) = (row.get("bindings.binding")?, row.get("bindings.bound_at")?);
    Ok(Binding { number, account, bound_at })
}
