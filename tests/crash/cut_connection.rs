//! A connection to PostgreSQL that is cut at COMMIT, before the database sees it or after: the
//! server must find out which it was, or say that it does not know, and count nothing twice. And a
//! database that cannot be reached yet when the server starts.

use super::load::{Failing, Load, Stage, declare_meters};
use super::server::{Launch, Place, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Every so many commits one is cut, by turns before and after it is passed on.
const CUT_EVERY: usize = 4;

/// A simple query that is COMMIT, as it goes over the wire.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// Passes connections on to `database`.
fn start_proxy(listener: TcpListener, database: String, cuts: Arc<AtomicUsize>) {
    let commits = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&database).await else { continue };
            let (commits, cuts) = (Arc::clone(&commits), Arc::clone(&cuts));
            tokio::spawn(async move {
                let _ = pass_on(near, far, &commits, &cuts).await;
            });
        }
    });
}

/// The place's store behind another address, and the address of the database itself.
fn behind(place: &Place, address: SocketAddr) -> (String, String) {
    let store = place.store();
    let (user, rest) = store.split_once('@').unwrap();
    let (database, name) = rest.split_once('/').unwrap();
    (format!("{user}@{address}/{name}"), database.to_owned())
}

async fn pass_on(
    near: TcpStream,
    far: TcpStream,
    commits: &AtomicUsize,
    cuts: &AtomicUsize,
) -> std::io::Result<()> {
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let answers = tokio::spawn(async move { tokio::io::copy(&mut far_in, &mut near_out).await });
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let length = near_in.read(&mut chunk).await?;
        if length == 0 {
            break;
        }
        let bytes = &chunk[..length];
        if bytes.windows(COMMIT.len()).any(|window| window == COMMIT) {
            let number = commits.fetch_add(1, Ordering::SeqCst);
            if number % CUT_EVERY == CUT_EVERY - 1 {
                answers.abort();
                if cuts.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                    far_out.write_all(bytes).await?;
                    // The database has it and works on it; nobody hears how it ends.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return Ok(());
            }
        }
        far_out.write_all(bytes).await?;
    }
    answers.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_cut_off_are_counted_once() {
    let Some(place) = Place::postgres().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (through_proxy, database) = behind(&place, listener.local_addr().unwrap());
    let cuts = Arc::new(AtomicUsize::new(0));
    start_proxy(listener, database, Arc::clone(&cuts));
    declare_meters(&Server::start(&place).url).await;
    let launch = Launch { store: Some(&through_proxy), ..Launch::default() };
    let mut server = Server::launch(&place, &launch).unwrap();
    let load = Load::new("cut", 12, 1_500);
    let known = load.none_acknowledged();
    let sending = load.send(&server.url, 4, Failing::Retry, &known);
    let wrong = tokio::time::timeout(Duration::from_secs(60), sending).await;
    let wrong = wrong.expect("it ends in time");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cuts.load(Ordering::SeqCst) >= 4, "only {cuts:?} cuts");
    server.kill();
    let again = Server::start(&place);
    let violations = load.examine(&again.url, &known, Stage::Complete).await;
    assert!(violations.is_empty(), "before sending again: {violations:#?}");
    drop(again);
    let violations = load.recover(&place, &known).await;
    assert!(violations.is_empty(), "{violations:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_up_yet_is_waited_for() {
    let Some(place) = Place::postgres().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (store, database) = behind(&place, address);
    let launch = |wait_ms: u32| {
        let settings = [("COUNTERFOIL_STORE_WAIT_MS", wait_ms.to_string())];
        let launch = Launch { store: Some(&store), settings: &settings, ..Launch::default() };
        Server::launch(&place, &launch)
    };
    let refused = tokio::task::block_in_place(|| launch(0)).err().expect("nothing listens there");
    assert!(refused.contains("check that the database runs"), "{refused}");
    let come_up = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let listener = TcpListener::bind(address).await.unwrap();
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(&database).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let server = tokio::task::block_in_place(|| launch(30_000)).unwrap();
    declare_meters(&server.url).await;
    come_up.abort();
}
