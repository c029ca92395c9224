//! The real binary with the key of another account than the one that its store is bound to.

use super::server::{Launch, Place, Server};
use std::process::Command;
use std::sync::{Arc, Mutex};
use stripe_sim::{Handle, Options, Simulator, Timestamp};

async fn provider(account: &str, key: &str) -> Handle {
    let options =
        Options { account: account.into(), api_key: Some(key.into()), ..Options::default() };
    let simulator = Simulator::following(Timestamp::now, options);
    let listen = "127.0.0.1:0".parse().unwrap();
    Handle::start(listen, Arc::new(Mutex::new(simulator))).await.unwrap()
}

fn launch(place: &Place, base: &str, key: &str) -> Result<Server, String> {
    let settings = [
        ("COUNTERFOIL_PROVIDER_KIND", "stripe".to_owned()),
        ("COUNTERFOIL_STRIPE_API_BASE", base.to_owned()),
        ("COUNTERFOIL_STRIPE_API_KEY", key.to_owned()),
    ];
    Server::launch(place, &Launch { settings: &settings, ..Launch::default() })
}

/// `counterfoil store rebind`: what it printed, if it succeeded.
fn rebind(place: &Place) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_counterfoil"))
        .args(["store", "rebind", "--store", &place.store()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn another_account_is_refused_until_it_is_accepted(place: Place) {
    let (test, live) = ("sk_test_binding", "sk_live_binding");
    let first = provider("acct_first", test).await;
    let second = provider("acct_second", test).await;
    let moved = provider("acct_first", live).await;
    launch(&place, &first.url(), test).expect("the first account is bound").kill();
    launch(&place, &first.url(), test).expect("it is the same account").kill();
    for (base, key, named) in
        [(second.url(), test, "acct_second (test mode)"), (moved.url(), live, "acct_first (live)")]
    {
        let said = launch(&place, &base, key).err().expect("it is another account");
        assert!(said.contains("bound to stripe account acct_first (test mode)"), "{said}");
        assert!(said.contains(named) && said.contains("counterfoil store rebind"), "{said}");
    }
    // A provider that cannot be reached holds up nobody who sends events.
    launch(&place, "http://127.0.0.1:1", test).expect("it starts without its provider").kill();
    assert!(rebind(&place).contains("not bound to stripe account acct_first (test mode)"));
    launch(&place, &moved.url(), live).expect("the change was accepted").kill();
    let said = launch(&place, &first.url(), test).err().expect("it is bound to the live mode");
    assert!(said.contains("acct_first (live)"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_another_account_is_refused_until_it_is_accepted() {
    another_account_is_refused_until_it_is_accepted(Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_another_account_is_refused_until_it_is_accepted() {
    if let Some(place) = Place::postgres().await {
        another_account_is_refused_until_it_is_accepted(place).await;
    }
}
