//! Which answers are kept and given again, and which are not.

use crate::app::{App, Call, identify};
use crate::place::{LEASE, Place, owned, request, scope};
use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use counterfoil_idempotency::{
    Attempt, Clock, IdempotencyLayer, KeyPolicy, NothingBegan, Settings, SqliteStore, Store,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An application that answers with what `answer` makes of the number of the run, and the counter
/// of runs.
fn counting(
    store: Arc<dyn Store>,
    settings: Settings,
    answer: impl Fn(u32) -> Response + Clone + Send + Sync + 'static,
) -> (App, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let app = App::new(store, settings, move |_, _| {
        let run = counter.fetch_add(1, Ordering::SeqCst);
        let answer = answer.clone();
        async move { answer(run) }
    });
    (app, runs)
}

pub async fn statuses_decide_what_is_kept(place: Place) {
    let kept = [200, 201, 202, 204, 301, 303, 400, 402, 404, 409, 410, 422];
    let not_kept = [408, 425, 429, 500, 502, 503, 504, 599];
    for (status, runs_expected) in
        kept.map(|status| (status, 1)).into_iter().chain(not_kept.map(|status| (status, 3)))
    {
        let status = StatusCode::from_u16(status).unwrap();
        let store = place.store().await;
        let (app, runs) = counting(store, Settings::default(), move |run| {
            let body = if status == StatusCode::NO_CONTENT { "" } else { "said" };
            (status, [("x-run", run.to_string())], body).into_response()
        });
        let call = Call::new("acme", &format!("k-{status}").replace(' ', "-"), "{}");
        for number in 0..3_u32 {
            let reply = app.call(call.clone()).await;
            assert_eq!(reply.status, status);
            assert_eq!(reply.replayed(), runs_expected == 1 && number > 0, "{status}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), runs_expected, "{status}");
    }
}

pub async fn a_request_that_never_began_leaves_its_key_unused(place: Place) {
    let (app, runs) = counting(place.store().await, Settings::default(), |run| {
        let mut response = (StatusCode::UNPROCESSABLE_ENTITY, "no").into_response();
        match run {
            0 | 1 => drop(response.extensions_mut().insert(NothingBegan)),
            _ => response = "done".into_response(),
        }
        response
    });
    let call = |body: &'static str| Call::new("acme", "k-1", body);
    for body in ["{}", "{\"a\":1}"] {
        let reply = app.call(call(body)).await;
        assert_eq!((reply.status, reply.replayed()), (StatusCode::UNPROCESSABLE_ENTITY, false));
    }
    assert_eq!(app.call(call("{\"a\":2}")).await.status, StatusCode::OK);
    assert!(app.call(call("{\"a\":2}")).await.replayed());
    assert_eq!(app.call(call("{}")).await.code(), "idempotency_key_reused");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

pub async fn effects_are_kept_for_longer_than_refusals(place: Place) {
    let store = place.store().await;
    let (app, runs) = counting(Arc::clone(&store), Settings::default(), |run| {
        if run % 2 == 0 { "done".into_response() } else { StatusCode::GONE.into_response() }
    });
    let (effect, refusal) = (Call::new("acme", "effect", "{}"), Call::new("acme", "no", "{}"));
    for call in [&effect, &refusal] {
        assert!(!app.call(call.clone()).await.replayed());
    }
    let hour = Duration::from_secs(3600);
    for (wait, effect_stays, refusal_stays) in [
        (hour - Duration::from_millis(1), true, true),
        (Duration::from_millis(1), true, false),
        (hour * 23, false, false),
    ] {
        place.clock.advance(wait);
        let swept = store.sweep(10).await.unwrap();
        if !place.sweeps() {
            assert_eq!(swept, 0);
            continue;
        }
        let stays = |key| {
            let (store, scope) = (Arc::clone(&store), scope("acme", key));
            async move { store.claim(&scope, &request(9), LEASE).await.unwrap() }
        };
        // Another request under a key that is remembered is refused, and claims nothing.
        let remembered = counterfoil_idempotency::Claimed::Mismatch;
        assert_eq!(stays("effect").await == remembered, effect_stays, "after {wait:?}");
        if refusal_stays {
            assert_eq!(stays("no").await, remembered, "after {wait:?}");
        } else {
            assert_eq!(swept, 1, "after {wait:?}");
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

pub async fn after_a_recovery_point_a_failure_is_resumed(place: Place) {
    // The first attempt gets half way and fails, the second panics, the third goes on.
    let handler = |attempt: Option<Attempt>, _: Bytes| async move {
        let attempt = attempt.unwrap();
        match attempt.recovery_point() {
            None => {
                attempt.reach("half").await.unwrap();
                StatusCode::BAD_GATEWAY.into_response()
            }
            Some("half") => {
                attempt.reach("most").await.unwrap();
                panic!("planted");
            }
            Some(point) => (StatusCode::CREATED, point.to_owned()).into_response(),
        }
    };
    let app = App::new(place.store().await, Settings::default(), handler);
    let call = Call::new("acme", "k-1", "{}");
    assert_eq!(app.call(call.clone()).await.status, StatusCode::BAD_GATEWAY);
    // However long nobody comes.
    place.clock.advance(LEASE * 1_000_000);
    place.store().await.sweep(100).await.unwrap();
    let reply = app.call(call.clone()).await;
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "internal_error".into())
    );
    let reply = app.call(call.clone()).await;
    assert_eq!((reply.status, reply.body.as_ref()), (StatusCode::CREATED, b"most".as_slice()));
    assert!(app.call(call).await.replayed());
}

pub async fn a_stream_is_refused_and_its_effect_is_on_record(place: Place) {
    let stream = |_| {
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>("a"), Ok("b")]);
        Body::from_stream(pieces).into_response()
    };
    let events = |_| {
        let kind = HeaderValue::from_static("Text/Event-Stream; charset=utf-8");
        ([(header::CONTENT_TYPE, kind)], "data: 1\n\n").into_response()
    };
    let large = |_| "x".repeat(1025).into_response();
    let fits = |_| "x".repeat(1024).into_response();
    let refused = |_| (StatusCode::NOT_FOUND, "x".repeat(1025)).into_response();
    type Answers = Arc<dyn Fn(u32) -> Response + Send + Sync>;
    let cases: [(&str, Answers, bool); 5] = [
        ("stream", Arc::new(stream), false),
        ("events", Arc::new(events), false),
        ("large", Arc::new(large), false),
        ("refused", Arc::new(refused), false),
        ("fits", Arc::new(fits), true),
    ];
    for (name, answer, is_kept) in cases {
        let settings = Settings { answer_bytes_max: 1024, ..Settings::default() };
        let (app, runs) = counting(place.store().await, settings, move |run| answer(run));
        let call = Call::new("acme", name, "{}");
        let (first, second) = (app.call(call.clone()).await, app.call(call).await);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{name} must not run again");
        assert!(!first.replayed() && second.replayed(), "{name}");
        assert_eq!((first.status, &first.body), (second.status, &second.body), "{name}");
        if is_kept {
            assert_eq!(first.status, StatusCode::OK);
            continue;
        }
        assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR, "{name}");
        assert_eq!(first.code(), "idempotency_streaming_unsupported");
        assert_eq!(second.code(), "idempotency_streaming_unsupported");
        let said = String::from_utf8(first.body.to_vec()).unwrap();
        let done = if name == "refused" { "refused for good" } else { "carried out" };
        assert!(said.contains(done), "{name}: {said}");
    }
}

pub async fn bodies_and_headers_are_given_again(place: Place) {
    let (app, _) = counting(place.store().await, Settings::default(), |_| {
        let mut response = Response::new(Body::from(vec![0, 159, 146, 150, 255]));
        *response.status_mut() = StatusCode::CREATED;
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("image/x-odd"));
        headers.insert("location", HeaderValue::from_bytes(b"/caf\xe9").unwrap());
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.insert("set-cookie", HeaderValue::from_static("session=secret"));
        response
    });
    let call = Call::new("acme", "k-1", "{}");
    let (first, second) = (app.call(call.clone()).await, app.call(call).await);
    assert_eq!(first.headers["set-cookie"], "session=secret");
    assert!(!second.headers.contains_key("set-cookie"), "it was meant for the first caller alone");
    assert_eq!((first.status, &first.body), (second.status, &second.body));
    assert_eq!(first.status, StatusCode::CREATED);
    for name in ["content-type", "location", "link"] {
        let values = |headers: &axum::http::HeaderMap| {
            headers.get_all(name).iter().cloned().collect::<Vec<HeaderValue>>()
        };
        assert_eq!(values(&first.headers), values(&second.headers), "{name}");
        assert!(!values(&first.headers).is_empty());
    }
}

pub async fn another_request_under_the_key_is_refused(place: Place) {
    let (app, runs) = counting(place.store().await, Settings::default(), |_| "x".into_response());
    let call = Call { path: "/refunds/1?a=1".to_owned(), ..Call::new("acme", "k-1", "{\"a\":1}") };
    assert_eq!(app.call(call.clone()).await.status, StatusCode::OK);
    let same = Call { body: Bytes::from_static(b" { \"a\" : 1 } "), ..call.clone() };
    assert!(app.call(same).await.replayed(), "spaces mean nothing in JSON");
    let path = |path: &str| Call { path: path.to_owned(), ..call.clone() };
    let body = |body: &'static str| Call { body: Bytes::from(body), ..call.clone() };
    let others = [
        path("/refunds/2?a=1"),
        path("/refunds/1?a=2"),
        path("/refunds/1"),
        body("{\"a\":1.0}"),
        body("{\"a\":2}"),
        body(""),
        Call { content_type: "text/plain", ..call.clone() },
    ];
    for other in others {
        let reply = app.call(other).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(reply.code(), "idempotency_key_reused");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // Another method is another route here, and so another key.
    assert_eq!(app.call(Call { method: Method::PUT, ..call }).await.status, StatusCode::OK);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

pub async fn a_request_that_is_too_large_claims_nothing(place: Place) {
    let settings = Settings { body_bytes_max: 10, ..Settings::default() };
    let (app, runs) = counting(place.store().await, settings, |_| "x".into_response());
    let reply = app.call(Call::new("acme", "k-1", "12345678901")).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(reply.code(), "request_too_large");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let reply = app.call(Call::new("acme", "k-1", "1234567890")).await;
    assert_eq!((reply.status, reply.replayed()), (StatusCode::OK, false));
}

fn on_sqlite() -> (tempfile::TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("keys.db"), Clock::system()).unwrap();
    (folder, Arc::new(store))
}

#[tokio::test]
async fn keys_have_a_form() {
    let (_folder, store) = on_sqlite();
    let (app, runs) = counting(store, Settings::default(), |_| "x".into_response());
    let with = |keys: &[&[u8]]| Call {
        keys: keys.iter().map(|key| key.to_vec()).collect(),
        ..Call::new("acme", "", "{}")
    };
    let (longest, too_long) = ([b'k'; 255], [b'k'; 256]);
    let good: [&[u8]; 4] = [b"k", &longest, b"\"quoted\"", b"!~:/\\,"];
    for key in good {
        assert_eq!(app.call(with(&[key])).await.status, StatusCode::OK, "{key:?}");
    }
    let bad: [&[&[u8]]; 6] =
        [&[b""], &[&too_long], &[b"a b"], &[b"caf\xc3\xa9"], &[b"a\tb"], &[b"a", b"a"]];
    for keys in bad {
        let reply = app.call(with(keys)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{keys:?}");
        assert_eq!(reply.code(), "idempotency_key_malformed");
    }
    let reply = app.call(with(&[])).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(reply.code(), "idempotency_key_missing");
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn some_calls_are_not_guarded() {
    let (_folder, store) = on_sqlite();
    let settings = Settings { policy: KeyPolicy::Optional, ..Settings::default() };
    let handler = |attempt: Option<Attempt>, body: Bytes| async move {
        let guarded = if attempt.is_some() { "guarded" } else { "unguarded" };
        format!("{guarded} {}", body.len()).into_response()
    };
    let app = App::new(store, settings, handler);
    let call = Call::new("acme", "k-1", "{}");
    assert_eq!(app.call(call.clone()).await.body, "guarded 2");
    let without_key = Call { keys: vec![], ..call.clone() };
    assert_eq!(app.call(without_key).await.body, "unguarded 2");
    let nobody = Call { tenant: None, ..call.clone() };
    assert_eq!(app.call(nobody).await.body, "unguarded 2");
    for method in [Method::GET, Method::OPTIONS] {
        let safe = Call { method, keys: vec![b"not a key".to_vec()], ..call.clone() };
        assert_eq!(app.call(safe).await.body, "unguarded 2");
    }
    let malformed = Call { keys: vec![b"not a key".to_vec()], ..call };
    assert_eq!(app.call(malformed).await.code(), "idempotency_key_malformed");
}

#[tokio::test]
async fn problems_are_rendered_as_the_application_likes() {
    let (_folder, store) = on_sqlite();
    let layer =
        IdempotencyLayer::new(store, Settings::default(), identify).with_render(|problem| {
            let mut response = axum::http::Response::new(Bytes::from(problem.code.name()));
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response
        });
    let app = App::layered(layer, |_, _| async { "x".into_response() });
    let reply = app.call(Call { keys: vec![], ..Call::new("acme", "", "{}") }).await;
    assert_eq!(reply.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(reply.body, "idempotency_key_missing");
}

#[tokio::test]
async fn a_handler_may_say_that_it_has_ended_its_claim() {
    let (_folder, store) = on_sqlite();
    let own = Arc::clone(&store);
    let app = App::new(store, Settings::default(), move |attempt, _| {
        let own = Arc::clone(&own);
        async move {
            let answer = crate::place::answer(202, "by itself");
            let ending = counterfoil_idempotency::Ending::Completed;
            own.end(attempt.unwrap().claim(), &answer, ending, LEASE).await.unwrap();
            Attempt::ended(answer)
        }
    });
    let call = Call::new("acme", "k-1", "{}");
    let (first, second) = (app.call(call.clone()).await, app.call(call).await);
    assert_eq!(
        (first.status, first.body.as_ref()),
        (StatusCode::ACCEPTED, b"by itself".as_slice())
    );
    assert_eq!(first.headers["content-type"], second.headers["content-type"]);
    assert!(!first.replayed() && second.replayed() && second.body == first.body);
}

#[tokio::test]
async fn an_owner_that_was_replaced_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::by_hand(crate::place::START);
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(&folder.path().join("keys.db"), clock.clone()).unwrap());
    let (own, moved) = (Arc::clone(&store), clock.clone());
    let handler = move |attempt: Option<Attempt>, _: Bytes| {
        let (own, clock) = (Arc::clone(&own), moved.clone());
        async move {
            // It sleeps past its lease, and another takes over.
            clock.advance(LEASE);
            let claim = attempt.unwrap().claim().clone();
            let fingerprint = fingerprint_of(Call::new("acme", "k-1", "{}"));
            let heir = owned(own.claim(&claim.scope, &fingerprint, LEASE).await.unwrap());
            assert_eq!(heir.fence, 2);
            "late".into_response()
        }
    };
    let app = App::new(Arc::clone(&store), Settings::default(), handler);
    let reply = app.call(Call::new("acme", "k-1", "{}")).await;
    assert_eq!((reply.status, reply.retry_after()), (StatusCode::CONFLICT, Some(1)));
    assert_eq!(reply.code(), "idempotency_key_in_use");
    let other = store.claim(&scope("acme", "k-1"), &request(9), LEASE).await.unwrap();
    assert_eq!(other, counterfoil_idempotency::Claimed::Mismatch, "the heir's claim stands");
}

fn fingerprint_of(call: Call) -> counterfoil_idempotency::Fingerprint {
    let body = call.body.clone();
    let (parts, _) = call.request().into_parts();
    counterfoil_idempotency::Fingerprint::of(&parts, &body)
}
