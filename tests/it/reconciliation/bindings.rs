//! A store that bills through another account than before.

use super::world::{Ground, World};
use counterfoil::rules::binding::{BillingAccount, Unbinding};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::submission::PushState;

fn account(id: &str) -> BillingAccount {
    BillingAccount { provider: "stripe".into(), id: Some(id.into()), live: true }
}

pub async fn usage_of_the_former_account_is_not_sent_to_the_next(ground: Ground) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    world.store.bind(&account("acct_1"), world.clock.now()).await.unwrap();
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    let pushes = world.pushes().await;
    assert_eq!(pushes[0].state, PushState::Confirmed);
    let unbinding = world.store.end_binding(world.clock.now()).await.unwrap();
    assert!(matches!(unbinding, Unbinding::Ended(_)));
    world.store.bind(&account("acct_2"), world.clock.now()).await.unwrap();
    // The customer is there under the same id, as after a copy of the account, without the usage.
    world.stripe.lose(&pushes[0].key);
    world.until("2026-11-15T18:00:00Z").await;
    world.used("acme", "5", "2026-11-15T17:10:00Z").await;
    world.rest(36).await;
    assert_eq!(world.stripe.sum(&customer), "5", "what the former account took is not sent");
    let findings = world.open_findings(FindingKind::Usage).await;
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(world.pages(), []);
}
