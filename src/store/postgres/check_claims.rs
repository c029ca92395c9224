//! The check of claims: every event is found again by its key. A redelivery of an event that is not
//! would count again.

use super::events::Probe;
use super::failure::Failure;
use super::scalars::{SqlHash, column, tenant_number};
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::store::{CHECK_FINDINGS_MAX, CheckReport, Result, StoredEvent};
use deadpool_postgres::ClientWrapper;

/// Claims after the key's own place that are looked at: collisions of 128 bits do not happen, so
/// even a few mean that the store's secret is not the one that the keys were made with.
const CHAIN_MAX: i64 = 1_000;

/// Events whose claims are looked for.
#[derive(Default)]
pub struct ClaimsCheck {
    expected: Vec<Expected>,
}

struct Expected {
    number: TenantNo,
    tenant: TenantId,
    id: EventId,
    /// The key's own fingerprint.
    home: u128,
    event_no: i64,
}

impl ClaimsCheck {
    pub fn expect(&mut self, number: TenantNo, home: u128, event_no: i64, stored: &StoredEvent) {
        let (tenant, id) = (stored.event.tenant.clone(), stored.event.id.clone());
        self.expected.push(Expected { number, tenant, id, home, event_no });
    }

    pub async fn check(&self, client: &ClientWrapper, report: &mut CheckReport) -> Result<()> {
        let statement = Probe::prepare(client).await?;
        let probe = Probe::new(self.expected.iter().map(|one| (one.number, one.home)));
        let claims = probe.run(client, &statement).await.map_err(Failure::into_error)?;
        for one in &self.expected {
            if claims.at(one.number, one.event_no) == Some(one.home) {
                continue;
            }
            if report.findings.len() >= CHECK_FINDINGS_MAX {
                return Ok(());
            }
            one.look_further(client, report).await?;
        }
        Ok(())
    }
}

impl Expected {
    /// The claim does not lie at its key's own place: after a collision that is right, if claims of
    /// other keys lie at every place from there on.
    async fn look_further(&self, client: &ClientWrapper, report: &mut CheckReport) -> Result<()> {
        let Self { number, tenant, id, home, event_no } = self;
        let sql = "-- look_further
            SELECT key_hash, event_no FROM event_claims WHERE tenant_no = $1 AND key_hash >= $2
            ORDER BY key_hash LIMIT $3";
        let statement = client.prepare_cached(sql).await?;
        let number = tenant_number(*number);
        let rows = client.query(&statement, &[&number, &SqlHash(*home), &CHAIN_MAX]).await?;
        let (mut place, mut before) = (*home, Vec::new());
        for row in &rows {
            let (SqlHash(slot), at): (SqlHash, i64) = (column(row, 0)?, column(row, 1)?);
            if slot != place {
                break;
            }
            if at == *event_no {
                let sql = "-- look_further
                    SELECT count(*) FROM events
                    WHERE tenant_no = $1 AND event_no = ANY ($2) AND id = $3";
                let row = client.query_one(sql, &[&number, &before, &id.as_str()]).await?;
                if column::<i64>(&row, 0)? > 0 {
                    report.add(|| format!("event {id} of {tenant} is stored twice"));
                }
                return Ok(());
            }
            before.push(at);
            place = place.wrapping_add(1);
        }
        report.add(|| format!("event {id} of {tenant} does not lie where its key is found"));
        Ok(())
    }
}
