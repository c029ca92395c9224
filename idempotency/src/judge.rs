//! What a stored record means to a caller: the one decision that all stores share.
//!
//! Invariant: a record that is not understood in full is [`StoreError::Unreadable`], and never
//! looks like no record at all.

use crate::record::{Answer, Ending, Fingerprint, Millis, StoreError};
use bytes::Bytes;
use std::time::Duration;

/// For how long a record is kept that was released before its first effect. It says nothing that
/// matters but its fence.
pub(crate) const RELEASED_KEPT: Duration = Duration::from_secs(3600);

/// A record as a store holds it, before it is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub fingerprint: Vec<u8>,
    pub state: String,
    pub owner: Vec<u8>,
    pub fence: i64,
    pub lease_until: Option<i64>,
    pub lease_ms: i64,
    pub recovery_point: Option<String>,
    pub status: Option<i64>,
    pub headers: Option<String>,
    pub body: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Nobody has it: the caller may take it with this fence.
    Free {
        fence: i64,
    },
    Ended(Answer),
    /// Somebody has it. `shortened` is when the lease is to end if it ends too late.
    Busy {
        retry_after: Duration,
        shortened: Option<Millis>,
    },
    Mismatch,
}

pub(crate) fn judge(
    stored: &Stored,
    fingerprint: &Fingerprint,
    now: Millis,
) -> Result<Judgement, StoreError> {
    let known: [u8; 32] = exactly(&stored.fingerprint, "fingerprint")?;
    let _: [u8; 16] = exactly(&stored.owner, "owner")?;
    let next = stored
        .fence
        .checked_add(1)
        .filter(|next| *next > 1)
        .ok_or_else(|| StoreError::Unreadable(format!("{} is no fence", stored.fence)))?;
    let free = Judgement::Free { fence: next };
    let judgement = match (stored.state.as_str(), stored.lease_until) {
        ("claimed", Some(until)) => busy(until, stored.lease_ms, now).unwrap_or(free),
        ("released", None) => free,
        ("completed" | "failed", None) => Judgement::Ended(answer(stored)?),
        (state, until) => {
            let message = format!("the state {state:?} with a lease until {until:?}");
            return Err(StoreError::Unreadable(message));
        }
    };
    Ok(if known == fingerprint.0 { judgement } else { Judgement::Mismatch })
}

/// None if the lease has run out. A lease that ends further ahead than its owner ever asked for
/// was taken before the clock was set back. A living owner soon renews it by today's clock; for a
/// dead one it is shortened to what was asked for, so that the key is not locked for years.
fn busy(until: i64, lease_ms: i64, now: Millis) -> Option<Judgement> {
    let left = until.saturating_sub(now.0);
    if left <= 0 {
        return None;
    }
    let shortened = (left > lease_ms).then(|| Millis(now.0.saturating_add(lease_ms)));
    let left = u64::try_from(left.min(lease_ms)).unwrap_or(0);
    Some(Judgement::Busy { retry_after: Duration::from_millis(left), shortened })
}

fn answer(stored: &Stored) -> Result<Answer, StoreError> {
    let (Some(status), Some(headers), Some(body)) = (stored.status, &stored.headers, &stored.body)
    else {
        return Err(StoreError::Unreadable("it has ended without a whole answer".to_owned()));
    };
    let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
    let status = status
        .ok_or_else(|| StoreError::Unreadable(format!("{:?} is no final status", stored.status)))?;
    Ok(Answer { status, headers: read_headers(headers)?, body: Bytes::from(body.clone()) })
}

fn exactly<const N: usize>(bytes: &[u8], name: &str) -> Result<[u8; N], StoreError> {
    bytes.try_into().map_err(|_| {
        StoreError::Unreadable(format!("its {name} has {} bytes, not {N}", bytes.len()))
    })
}

/// Headers as stores keep them: values may be any bytes, so each byte is one character. An answer
/// that could not be given again is refused before it is written.
pub(crate) fn write_headers(answer: &Answer) -> Result<String, StoreError> {
    if !(200..600).contains(&answer.status) {
        let message = format!("{} is no status of a final answer", answer.status);
        return Err(StoreError::Unreadable(message));
    }
    let pairs: Vec<(&str, String)> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.iter().copied().map(char::from).collect()))
        .collect();
    let text = serde_json::to_string(&pairs).expect("pairs of texts are JSON");
    read_headers(&text)?;
    Ok(text)
}

fn read_headers(text: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let unreadable = || StoreError::Unreadable("its headers are not a list of pairs".to_owned());
    let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|_| unreadable())?;
    pairs
        .into_iter()
        .map(|(name, value)| {
            http::HeaderName::try_from(&name).map_err(|_| unreadable())?;
            let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
            let bytes = bytes.map_err(|_| unreadable())?;
            http::HeaderValue::from_bytes(&bytes).map_err(|_| unreadable())?;
            Ok((name, bytes))
        })
        .collect()
}

/// The owner of a new claim.
pub(crate) fn new_owner() -> [u8; 16] {
    let mut owner = [0; 16];
    getrandom::fill(&mut owner).expect("the system gives random bytes");
    owner
}

/// The state of a record that has ended so.
pub(crate) fn state_of(ending: Ending) -> &'static str {
    match ending {
        Ending::Completed => "completed",
        Ending::Failed => "failed",
    }
}

/// A recovery point has 1 to 1,024 characters.
pub(crate) fn check_point(point: &str) -> Result<(), StoreError> {
    let length = point.chars().count();
    if (1..=1024).contains(&length) {
        return Ok(());
    }
    let message = format!("a recovery point has 1 to 1,024 characters, and this one {length}");
    Err(StoreError::Unavailable(message))
}
