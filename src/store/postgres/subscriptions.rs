//! Subscription records as cuts need them; see `sql/subscriptions.rs`.

use super::scalars::{column, corrupt, instant, instant_if_any};
use super::timelines::read_timelines;
use crate::faults::planted;
use crate::rules::ids::SubscriptionId;
use crate::rules::stamp::{Agreed, Term, find_terms};
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;

/// Under which subscriptions the usage of each of these tenants is charged.
pub async fn read_terms(
    client: &ClientWrapper,
    numbers: &[i32],
) -> Result<BTreeMap<i32, Vec<Term>>> {
    if planted("bug.stamp_outside_subscription") {
        return Ok(BTreeMap::new());
    }
    let sql = "-- read_terms
        SELECT tenant_no, subscription, began_at, charged_from, ended_at FROM subscription_records
        WHERE tenant_no = ANY($1)";
    let statement = client.prepare_cached(sql).await?;
    let mut agreed: BTreeMap<i32, Vec<Agreed>> = BTreeMap::new();
    for row in client.query(&statement, &[&numbers]).await? {
        let subscription: String = column(&row, 1)?;
        agreed.entry(column(&row, 0)?).or_default().push(Agreed {
            subscription: SubscriptionId::parse(&subscription)
                .map_err(|_| corrupt("a subscription has no valid id"))?,
            began_at: instant(&row, 2)?,
            charged_from: instant_if_any(&row, 3)?,
            ended_at: instant_if_any(&row, 4)?,
        });
    }
    let mut timelines = read_timelines(client, numbers).await?;
    let mut terms = BTreeMap::new();
    for number in numbers {
        let (agreed, timeline) = (agreed.remove(number), timelines.remove(number));
        let found = find_terms(&agreed.unwrap_or_default(), &timeline.unwrap_or_default());
        terms.insert(*number, found);
    }
    Ok(terms)
}
