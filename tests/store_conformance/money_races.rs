//! Two servers on one PostgreSQL database that issue, void, expire, draw, give back and post
//! at once: nothing is made or lost, nobody waits in a circle, and no message is passed over.

use crate::accounts::{entry, key, name};
use crate::billed::quantity;
use crate::credits::{changes, check_conserved, direction, taking};
use crate::fixture::tenant_id;
use crate::pair::Pair;
use counterfoil::rules::account::Floor;
use counterfoil::rules::credit::{CreditChange, GrantTerms, Pool};
use counterfoil::rules::ids::{TenantId, Unit};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::account::{NewAccount, Posted};
use counterfoil::store::credit::{Issued, Voided};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

const TENANTS: usize = 5;
const HOURS: i64 = 4;
const ROUNDS: usize = 8;
/// Entries of each tenant in a round.
const ENTRIES: usize = 6;
/// Accounts that entries move between, all of them in each.
const ACCOUNTS: [&str; 4] = ["a", "b", "c", "d"];

const BILLED: &str = r#"{"aggregation":"sum","signed":true,
    "billing":{"from":"2020-01-01T00:00:00Z","scale":0}}"#;

/// With accounts of every tenant.
async fn open() -> Option<Pair> {
    let pair = Pair::open(BILLED).await?;
    let unit = Unit::parse("eur").unwrap();
    for tenant in tenants() {
        for account in ACCOUNTS {
            let (tenant, name) = (tenant.clone(), name(account));
            let new = NewAccount { tenant, name, unit: unit.clone(), floor: Floor::None };
            pair.stores[0].put_account(new, pair.now).await.unwrap();
        }
    }
    Some(pair)
}

impl Pair {
    fn terms(&self, tenant: &TenantId, round: usize) -> GrantTerms {
        // Of every second round's grant, what is left expires at once.
        let expires_at = (round % 2 == 1).then_some(self.now);
        GrantTerms {
            tenant: tenant.clone(),
            key: key(&format!("grant {round}")),
            pool: if round.is_multiple_of(3) { Pool::Purchased } else { Pool::Granted },
            unit: Unit::parse("credits").unwrap(),
            amount: quantity("7"),
            rates: BTreeMap::from([(self.meter, quantity("0.5"))]),
            priority: 10,
            effective_at: self.window(0).start,
            expires_at,
            memo: String::new(),
        }
    }

    /// Issues to every tenant and takes a part back; both servers do the same, in other orders.
    async fn issue_and_take(&self, server: usize, round: usize) -> (usize, usize) {
        let store = &self.stores[server];
        let (mut issued, mut taken) = (0, 0);
        for tenant in in_order(server) {
            let terms = self.terms(&tenant, round);
            let grant = match store.issue_grant(terms, self.now, None).await.unwrap() {
                Issued::Created(grant) => {
                    issued += 1;
                    grant
                }
                Issued::Repeated(grant) => grant,
                other => panic!("{other:?}"),
            };
            let once = format!("back {round}");
            let order = taking(tenant.as_str(), grant.number, &once, Some("0.25"));
            match store.void_grant(order, self.now, None).await.unwrap() {
                Voided::Done(_) => taken += 1,
                Voided::Repeated(_) => {}
                // A cut or the expiry was faster.
                Voided::TooLittle(_) => {}
                other => panic!("{other:?}"),
            }
        }
        (issued, taken)
    }

    /// Moves 1 from two to the two others of every tenant's accounts, many entries at once; both
    /// servers write the same entries.
    async fn post(&self, server: usize, round: usize) -> usize {
        let mut posting = JoinSet::new();
        for tenant in in_order(server) {
            for n in 0..ENTRIES {
                let mut moved: Vec<(&str, &str)> =
                    ACCOUNTS.into_iter().zip(["-1", "1", "-1", "1"]).collect();
                moved.rotate_left(n % ACCOUNTS.len());
                let new = entry(tenant.as_str(), &format!("move {round} {n}"), &moved);
                let (store, now) = (Arc::clone(&self.stores[server]), self.now);
                posting.spawn(async move { store.post_entry(new, now, None).await.unwrap() });
            }
        }
        let mut recorded = 0;
        for posted in posting.join_all().await {
            match posted {
                Posted::Recorded(_) => recorded += 1,
                Posted::Repeated(_) => {}
                other => panic!("{other:?}"),
            }
        }
        recorded
    }

    /// Reads changes as they come, after the highest number seen, until told to stop and nothing
    /// is left.
    async fn follow(&self, stop: &AtomicBool) -> Vec<u64> {
        let mut seen: Vec<u64> = Vec::new();
        loop {
            let stopped = stop.load(Ordering::SeqCst);
            let query = Query { filter: None, after: seen.last().copied(), limit: 1_000 };
            let page = self.stores[1].list_changes(query).await.unwrap();
            if page.is_empty() && stopped {
                return seen;
            }
            seen.extend(page.into_iter().map(|message| message.number));
            tokio::task::yield_now().await;
        }
    }

    /// What was issued is left, drawn, expired or voided; what was used is covered, planned or
    /// carried; entries explain accounts.
    async fn check(&self, tenant: &TenantId) {
        check_conserved(&self.fixture, tenant.as_str()).await;
        let store = &self.stores[0];
        let (mut sum, mut touched) = (0, 0);
        for account in store.list_accounts(Query::first(tenant.clone(), 100)).await.unwrap() {
            if ACCOUNTS.contains(&account.name.as_str()) {
                sum += account.balance.units();
                touched += account.version;
            }
        }
        let postings = ACCOUNTS.len() * ENTRIES * ROUNDS;
        assert_eq!((sum, touched), (0, u64::try_from(postings).unwrap()));
        let range = Window { start: self.window(0).start, end: self.window(HOURS).start };
        let cuts = store.read_cuts(tenant, self.meter, range).await.unwrap();
        let covering = |change: &CreditChange| {
            Some(-change.covered.as_ref()?.quantity.units() * direction(change.kind))
        };
        let changes = changes(&self.fixture, tenant.as_str(), None).await;
        let drawn: i128 = changes.iter().filter_map(covering).sum();
        let covered: i128 = cuts.iter().map(|(_, cut)| cut.covered.units()).sum();
        let planned: i128 = cuts.iter().map(|(_, cut)| cut.planned.units()).sum();
        let carried = self.carried(tenant).await.units();
        let total: i128 = (0..ROUNDS).map(|round| quantity(used(round)).units()).sum();
        assert_eq!(drawn, covered);
        assert_eq!(covered + planned + carried, total * i128::from(HOURS));
        assert!(covered > Quantity::ZERO.units());
    }

    /// Closes both servers; how often PostgreSQL had to end a circle of waits.
    async fn deadlocks(self) -> i64 {
        self.close().await;
        let (client, connection) =
            tokio_postgres::connect(self.fixture.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        // Sessions hand in their counts when they end.
        let others = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        while client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
        let counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        client.query_one(counted, &[]).await.unwrap().get(0)
    }
}

fn used(round: usize) -> &'static str {
    if round % 3 == 2 { "-2.5" } else { "3.5" }
}

fn tenants() -> impl DoubleEndedIterator<Item = TenantId> {
    (0..TENANTS).map(|tenant| tenant_id(&format!("tenant-{tenant}")))
}

/// The tenants, in another order on each server.
fn in_order(server: usize) -> Vec<TenantId> {
    if server == 0 { tenants().collect() } else { tenants().rev().collect() }
}

fn every_window() -> impl Iterator<Item = (TenantId, i64)> {
    tenants().flat_map(|tenant| (0..HOURS).map(move |hour| (tenant.clone(), hour)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_moved_at_once_is_moved_once() {
    let Some(pair) = open().await else { return };
    let stop = AtomicBool::new(false);
    let move_money = async {
        let (mut issued, mut taken, mut posted) = (0, 0, 0);
        for round in 0..ROUNDS {
            pair.deliver(every_window(), round, used(round)).await;
            let expire = async |server: usize| {
                let store = &pair.stores[server];
                store.expire_grants(pair.now, pair.now, 100).await.unwrap()
            };
            let (first, second, a, b, ..) = tokio::join!(
                pair.issue_and_take(0, round),
                pair.issue_and_take(1, round),
                pair.post(0, round),
                pair.post(1, round),
                pair.cut(0, every_window()),
                pair.cut(1, every_window()),
                expire(0),
                expire(1),
            );
            issued += first.0 + second.0;
            taken += first.1 + second.1;
            posted += a + b;
        }
        pair.cut(0, every_window()).await;
        stop.store(true, Ordering::SeqCst);
        (issued, taken, posted)
    };
    let ((issued, taken, posted), followed) = tokio::join!(move_money, pair.follow(&stop));
    assert_eq!((issued, posted), (TENANTS * ROUNDS, TENANTS * ROUNDS * ENTRIES));
    assert!(taken > 0 && taken <= issued);
    for tenant in tenants() {
        pair.check(&tenant).await;
    }
    let all = pair.stores[0].list_changes(Query::first(None, 10_000)).await.unwrap();
    let all: Vec<u64> = all.into_iter().map(|message| message.number).collect();
    assert_eq!(followed, all, "who reads on from the highest number misses nothing");
    assert_eq!(pair.deadlocks().await, 0);
}
