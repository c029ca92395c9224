//! The simulator through its port: what a client sees of accidents, outages and webhooks.

use super::{NOON, World};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stripe_sim::{
    Decimal, FaultKind, FaultPlan, FaultRule, Handle, SimRequest, Simulator, TEST_KEY,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(2);

/// A world behind a port, and the request body of an event.
async fn start() -> (Handle, String, Arc<Mutex<Simulator>>) {
    let world = World::new();
    let body = String::from_utf8(world.event("a", "5", NOON).body).unwrap();
    let simulator = Arc::new(Mutex::new(world.simulator));
    let handle =
        Handle::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&simulator)).await.unwrap();
    (handle, body, simulator)
}

/// Everything that comes back for a meter event, and whether the connection was then closed.
async fn post(handle: &Handle, body: &str) -> (String, bool) {
    let mut stream = TcpStream::connect(handle.address()).await.unwrap();
    let request = format!(
        "POST /v1/billing/meter_events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TEST_KEY}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, async {
        // A reset is a way of closing.
        let _ = stream.read_to_end(&mut answer).await;
    })
    .await
    .is_ok();
    (String::from_utf8(answer).unwrap(), closed)
}

fn set(simulator: &Arc<Mutex<Simulator>>, kind: FaultKind) {
    let mut plan = FaultPlan::of_rules(vec![FaultRule::new(kind)]);
    (plan.slow_byte_ms, plan.delay_ms) = (50, 1_000);
    simulator.lock().unwrap().set_faults(plan);
}

#[tokio::test]
async fn what_a_client_sees() {
    let cases: [(FaultKind, bool, bool, usize); 7] = [
        (FaultKind::LostBefore, false, true, 0),
        (FaultKind::LostAfter, false, true, 1),
        (FaultKind::HangBefore, false, false, 0),
        (FaultKind::HangAfter, false, false, 1),
        (FaultKind::ResetMidBody, true, true, 1),
        (FaultKind::SlowBytes, true, false, 1),
        (FaultKind::Garbage200, true, true, 1),
    ];
    for (kind, answered, closed, counted) in cases {
        let (handle, body, simulator) = start().await;
        set(&simulator, kind);
        let (answer, was_closed) = post(&handle, &body).await;
        assert_eq!((!answer.is_empty(), was_closed), (answered, closed), "{kind:?}: {answer}");
        assert_eq!(simulator.lock().unwrap().accepted_events(), counted, "{kind:?}");
        let whole = answer.ends_with('}');
        assert!(!whole, "{kind:?} lets nobody read the answer at once: {answer}");
        if kind == FaultKind::ResetMidBody || kind == FaultKind::SlowBytes {
            let (_, part) = answer.split_once("\r\n\r\n").unwrap();
            assert!(part.starts_with('{'), "{kind:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_delayed_call_is_under_way() {
    let (handle, body, simulator) = start().await;
    set(&simulator, FaultKind::Delayed);
    let second = body.replace("identifier=a", "identifier=b");
    let ((first, _), (other, _)) = tokio::join!(post(&handle, &body), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        post(&handle, &second).await
    });
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    assert!(other.starts_with("HTTP/1.1 429"), "{other}");
    assert!(other.contains("stripe-rate-limited-reason: endpoint-concurrency"), "{other}");
    let (again, _) = post(&handle, &second).await;
    assert!(again.starts_with("HTTP/1.1 200"), "{again}");
}

#[tokio::test]
async fn an_outage_keeps_the_state() {
    let (mut handle, body, simulator) = start().await;
    let address = handle.address();
    assert!(post(&handle, &body).await.0.starts_with("HTTP/1.1 200"));
    handle.stop().await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    handle.restart().await.unwrap();
    assert_eq!(handle.address(), address);
    let (answer, _) = post(&handle, &body).await;
    assert!(answer.contains("An event already exists with identifier a"), "{answer}");
    assert_eq!(simulator.lock().unwrap().accepted_events(), 1);
}

#[tokio::test]
async fn webhooks_go_out() {
    let (_handle, _, simulator) = start().await;
    let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    {
        let mut simulator = simulator.lock().unwrap();
        let fields = [("url", url.as_str()), ("enabled_events[]", "*")];
        let form = SimRequest::form;
        assert_eq!(simulator.handle(&form("/v1/webhook_endpoints", &fields)).status, 200);
        simulator.handle(&form("/v1/customers", &[]));
    }
    let (mut stream, _) = receiver.accept().await.unwrap();
    let mut received = String::new();
    let began = Instant::now();
    while !received.contains("customer.created") && began.elapsed() < Duration::from_secs(5) {
        let mut part = [0; 4_096];
        let length = stream.read(&mut part).await.unwrap();
        received.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    assert!(received.contains(&format!("stripe-signature: t={NOON},v1=")), "{received}");
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
}

/// Sends every event until it is known to be delivered, so many at a time.
async fn deliver_all(at_a_time: usize) -> (usize, String, BTreeMap<FaultKind, u64>) {
    let (handle, body, simulator) = start().await;
    let kinds = [
        FaultKind::LostBefore,
        FaultKind::LostAfter,
        FaultKind::ResetMidBody,
        FaultKind::Error500Executed,
        FaultKind::Error500NotExecuted,
        FaultKind::Error503,
        FaultKind::Garbage200,
        FaultKind::RateLimited429,
    ];
    simulator.lock().unwrap().set_faults(FaultPlan::seeded(11, 60, &kinds));
    let bodies =
        (0..60).map(|number| body.replace("identifier=a", &format!("identifier={number}")));
    futures_util::stream::iter(bodies)
        .for_each_concurrent(at_a_time, |body| {
            let handle = &handle;
            async move {
                for _ in 0..20 {
                    let (answer, _) = post(handle, &body).await;
                    let taken = answer.starts_with("HTTP/1.1 200") && answer.ends_with('}');
                    if taken || answer.contains("An event already exists") {
                        return;
                    }
                }
                panic!("twenty attempts were not enough");
            }
        })
        .await;
    let simulator = simulator.lock().unwrap();
    let totals: Vec<String> = simulator.exact_totals().values().map(Decimal::to_string).collect();
    (simulator.accepted_events(), totals.join(" "), simulator.faults_injected().clone())
}

#[tokio::test]
async fn a_seed_does_the_same_however_many_call_at_once() {
    let (one, many) = (deliver_all(1).await, deliver_all(16).await);
    assert_eq!(one, many);
    assert_eq!((one.0, one.1.as_str()), (60, "300"));
    assert_eq!(one.2.len(), 8, "every kind was met: {:?}", one.2);
}
