//! Faults: which call or webhook meets which fault.
//!
//! Invariant: what a seed decides about a call depends on the seed, on the call's own key and on
//! how often that key was seen, never on the order in which different calls arrive. So concurrency
//! does not change the outcome. A rule takes precedence over the seed. A crash leaves nothing.

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::str::FromStr;

/// Chances are given in thousandths.
const PER_MILLE: u64 = 1_000;

/// The kinds of faults. In a plan as JSON they have the names that [`FaultKind::name`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Not executed; the connection is closed without a response.
    LostBefore,
    /// Executed; the connection is closed without a response.
    LostAfter,
    /// Not executed, and no response; the connection stays open.
    HangBefore,
    /// Executed, and no response; the connection stays open.
    HangAfter,
    /// Executed; the connection is closed after half of the response.
    ResetMidBody,
    /// Executed; the response is 500 and is kept under the Idempotency-Key.
    #[serde(rename = "error_500_executed")]
    Error500Executed,
    /// Not executed; the response is 500 and is kept under the Idempotency-Key.
    #[serde(rename = "error_500_not_executed")]
    Error500NotExecuted,
    /// Not executed; a proxy responds 502, and nothing is kept.
    #[serde(rename = "error_502")]
    Error502,
    /// Not executed; a proxy responds 503, and nothing is kept.
    #[serde(rename = "error_503")]
    Error503,
    /// Not executed; a proxy responds 504, and nothing is kept.
    #[serde(rename = "error_504")]
    Error504,
    /// Executed; the response is 200 with a body that is not JSON.
    #[serde(rename = "garbage_200")]
    Garbage200,
    /// Executed; the response arrives one byte at a time.
    SlowBytes,
    /// Executed; the response is late, and until then the call counts as in progress.
    Delayed,
    /// Not executed; a rate limiter responds 429 with its reason and Retry-After.
    #[serde(rename = "rate_limited_429")]
    RateLimited429,
    /// Not executed; the response is 429 with the code `lock_timeout`.
    #[serde(rename = "lock_timeout_429")]
    LockTimeout429,
    /// Not executed; the response is 409, as if a call with the same key were in progress.
    #[serde(rename = "conflict_409")]
    Conflict409,
    /// A meter event gets the response 200, is dropped, and is reported by a thin event.
    AsyncRejection,
    /// A summary shows an earlier state.
    SummaryLag,
    /// A webhook is delivered twice.
    WebhookDuplicated,
    /// A webhook is delivered late, after later ones.
    WebhookDelayed,
    /// A webhook is never delivered or retried. Its event is listed as usual.
    WebhookLost,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::LostBefore,
        Self::LostAfter,
        Self::HangBefore,
        Self::HangAfter,
        Self::ResetMidBody,
        Self::Error500Executed,
        Self::Error500NotExecuted,
        Self::Error502,
        Self::Error503,
        Self::Error504,
        Self::Garbage200,
        Self::SlowBytes,
        Self::Delayed,
        Self::RateLimited429,
        Self::LockTimeout429,
        Self::Conflict409,
        Self::AsyncRejection,
        Self::SummaryLag,
        Self::WebhookDuplicated,
        Self::WebhookDelayed,
        Self::WebhookLost,
    ];

    /// The name in a plan, such as `lost_after`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LostBefore => "lost_before",
            Self::LostAfter => "lost_after",
            Self::HangBefore => "hang_before",
            Self::HangAfter => "hang_after",
            Self::ResetMidBody => "reset_mid_body",
            Self::Error500Executed => "error_500_executed",
            Self::Error500NotExecuted => "error_500_not_executed",
            Self::Error502 => "error_502",
            Self::Error503 => "error_503",
            Self::Error504 => "error_504",
            Self::Garbage200 => "garbage_200",
            Self::SlowBytes => "slow_bytes",
            Self::Delayed => "delayed",
            Self::RateLimited429 => "rate_limited_429",
            Self::LockTimeout429 => "lock_timeout_429",
            Self::Conflict409 => "conflict_409",
            Self::AsyncRejection => "async_rejection",
            Self::SummaryLag => "summary_lag",
            Self::WebhookDuplicated => "webhook_duplicated",
            Self::WebhookDelayed => "webhook_delayed",
            Self::WebhookLost => "webhook_lost",
        }
    }

    /// Whether it concerns webhooks, not calls.
    fn is_of_webhooks(self) -> bool {
        matches!(self, Self::WebhookDuplicated | Self::WebhookDelayed | Self::WebhookLost)
    }
}

/// A fault for the calls that match all conditions that are set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// What happens.
    pub kind: FaultKind,
    /// A part of the path.
    #[serde(default)]
    pub path: Option<String>,
    /// Method and path with `:id` in place of ids: `POST /v1/customers/:id`.
    #[serde(default)]
    pub call: Option<String>,
    /// The event name of the meter.
    #[serde(default)]
    pub event_name: Option<String>,
    /// The id of the customer.
    #[serde(default)]
    pub customer: Option<String>,
    /// The first matching call that fails, counted from 1.
    #[serde(default = "once")]
    pub nth: u64,
    /// How many matching calls fail from there on.
    #[serde(default = "once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}

impl FaultRule {
    /// A rule for the first call.
    pub fn new(kind: FaultKind) -> Self {
        Self { kind, path: None, call: None, event_name: None, customer: None, nth: 1, times: 1 }
    }

    /// Limits the rule to paths that contain this text.
    #[must_use]
    pub fn on_path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Limits the rule to a method and path, such as `POST /v1/customers/:id`.
    #[must_use]
    pub fn on_call(mut self, call: &str) -> Self {
        self.call = Some(call.to_owned());
        self
    }

    /// Sets how many matching calls fail.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    fn matches(&self, subject: &Subject) -> bool {
        let wanted = |rule: &Option<String>, call: &Option<String>| {
            rule.is_none() || rule.as_ref() == call.as_ref()
        };
        self.path.as_ref().is_none_or(|part| subject.path.contains(part.as_str()))
            && self.call.as_ref().is_none_or(|call| subject.call == *call)
            && wanted(&self.event_name, &subject.event_name)
            && wanted(&self.customer, &subject.customer)
    }
}

/// Which calls and webhooks fail: by rules, and at random from a seed.
///
/// It is also read from text, as the command line has it:
///
/// ```
/// use stripe_sim::{FaultKind, FaultPlan};
///
/// let plan: FaultPlan = "lost_after=50,error_503=10".parse()?;
/// assert_eq!(plan.per_mille[&FaultKind::LostAfter], 50);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Rules, which take precedence over the seed. The first that matches decides.
    pub rules: Vec<FaultRule>,
    /// The seed of random faults. The same seed gives the same faults.
    pub seed: u64,
    /// The chance of each kind in thousandths. The sum is at most 1,000.
    pub per_mille: BTreeMap<FaultKind, u64>,
    /// The seed applies only to paths that contain one of these. An empty list is all paths. The
    /// path of a webhook is `webhook`.
    pub paths: Vec<String>,
    /// The lag of a summary under [`FaultKind::SummaryLag`].
    pub summary_lag_seconds: i64,
    /// The Retry-After of [`FaultKind::RateLimited429`].
    pub retry_after_seconds: u64,
    /// The pause between bytes under [`FaultKind::SlowBytes`].
    pub slow_byte_ms: u64,
    /// The delay of a response under [`FaultKind::Delayed`].
    pub delay_ms: u64,
    /// The delay of a webhook under [`FaultKind::WebhookDelayed`], by the simulator's clock.
    pub webhook_delay_seconds: i64,
    /// Whether webhooks that are due together are sent in an order that the seed decides.
    pub webhooks_shuffled: bool,
    /// The error code of the thin event under [`FaultKind::AsyncRejection`].
    pub rejection_code: String,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            seed: 0,
            per_mille: BTreeMap::new(),
            paths: Vec::new(),
            summary_lag_seconds: 3_600,
            retry_after_seconds: 1,
            slow_byte_ms: 20,
            delay_ms: 200,
            webhook_delay_seconds: 120,
            webhooks_shuffled: false,
            rejection_code: "meter_event_customer_not_found".to_owned(),
        }
    }
}

impl FaultPlan {
    /// A plan with these rules alone.
    pub fn of_rules(rules: Vec<FaultRule>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// A plan that gives each of these kinds the same chance, in thousandths.
    pub fn seeded(seed: u64, per_mille: u64, kinds: &[FaultKind]) -> Self {
        let per_mille = kinds.iter().map(|kind| (*kind, per_mille)).collect();
        Self { seed, per_mille, ..Self::default() }
    }

    fn check(&self) -> Result<(), String> {
        let sum = self.per_mille.values().fold(0u64, |sum, chance| sum.saturating_add(*chance));
        if sum > PER_MILLE {
            return Err(format!("chances add up to {sum} thousandths; 1000 are all there are"));
        }
        Ok(())
    }
}

impl FromStr for FaultPlan {
    type Err = String;

    /// `lost_after=50,error_503=10` in thousandths, `all=5`, or a plan as JSON.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            let plan: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
            plan.check()?;
            return Ok(plan);
        }
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, chance) = part.split_once('=').ok_or_else(|| {
                format!("{part} has no chance; write {part}=20 for 20 in a thousand")
            })?;
            let chance: u64 =
                chance.parse().map_err(|_| format!("{chance} is no number of thousandths"))?;
            if name == "all" {
                plan.per_mille.extend(FaultKind::ALL.map(|kind| (kind, chance)));
                continue;
            }
            let kind = FaultKind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| {
                let known = FaultKind::ALL.map(FaultKind::name).join(", ");
                format!("there is no fault {name}; there are all, {known}")
            })?;
            plan.per_mille.insert(kind, chance);
        }
        plan.check()?;
        Ok(plan)
    }
}

/// What rules and seeds see of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    pub path: String,
    /// Method and path with `:id` in place of ids.
    pub call: String,
    pub event_name: Option<String>,
    pub customer: Option<String>,
    /// The event's identifier, else the Idempotency-Key, else path and query.
    pub key: String,
}

/// A plan and its progress.
#[derive(Debug, Default)]
pub struct Faults {
    plan: FaultPlan,
    /// Matching calls so far, for each rule.
    matched: Vec<u64>,
    seen: BTreeMap<String, u64>,
    injected: BTreeMap<FaultKind, u64>,
}

impl Faults {
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// Replaces the plan. Counts of injected faults stay.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.matched = vec![0; plan.rules.len()];
        self.seen.clear();
        self.plan = plan;
    }

    /// The fault of this call. The caller counts it when it has happened.
    pub fn decide(&mut self, subject: &Subject) -> Option<FaultKind> {
        let mut hit = None;
        for (rule, matched) in self.plan.rules.iter().zip(self.matched.iter_mut()) {
            if rule.kind.is_of_webhooks() || !rule.matches(subject) {
                continue;
            }
            *matched += 1;
            let last = rule.nth.saturating_add(rule.times);
            if hit.is_none() && (rule.nth..last).contains(matched) {
                hit = Some(rule.kind);
            }
        }
        let drawn = self.draw(&subject.path, &subject.key);
        hit.or(drawn.filter(|kind| !kind.is_of_webhooks()))
    }

    /// The fault of a webhook, by the id of its event.
    pub fn decide_webhook(&mut self, event_id: &str) -> Option<FaultKind> {
        self.draw("webhook", event_id).filter(|kind| kind.is_of_webhooks())
    }

    /// The position of a delivery attempt among others that are due.
    pub fn place(&self, event_id: &str, attempts: u32) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.plan.seed, u64::from(attempts));
        hasher.write(event_id.as_bytes());
        hasher.finish()
    }

    pub fn count(&mut self, kind: FaultKind) {
        *self.injected.entry(kind).or_default() += 1;
    }

    pub fn injected(&self) -> &BTreeMap<FaultKind, u64> {
        &self.injected
    }

    fn draw(&mut self, path: &str, key: &str) -> Option<FaultKind> {
        let meant = |part: &String| path.contains(part.as_str());
        if self.plan.per_mille.is_empty()
            || (!self.plan.paths.is_empty() && !self.plan.paths.iter().any(meant))
        {
            return None;
        }
        let seen = self.seen.entry(key.to_owned()).or_default();
        let mut hasher = SipHasher13::new_with_keys(self.plan.seed, *seen);
        *seen += 1;
        hasher.write(key.as_bytes());
        let mut left = hasher.finish() % PER_MILLE;
        for (kind, chance) in &self.plan.per_mille {
            if left < *chance {
                return Some(*kind);
            }
            left -= chance;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_plan() {
        for kind in FaultKind::ALL {
            let written = serde_json::to_value(kind).expect("it can be written");
            assert_eq!(written, kind.name());
        }
    }

    #[test]
    fn specifications() {
        let check =
            |text: &str, expected: Result<usize, &str>| match (text.parse::<FaultPlan>(), expected)
            {
                (Ok(plan), Ok(kinds)) => assert_eq!(plan.per_mille.len(), kinds, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            };
        check("", Ok(0));
        check("lost_after=50, error_503=10", Ok(2));
        check("all=5", Ok(21));
        check("all=51", Err("1071 thousandths"));
        check("nothing=5", Err("no fault nothing"));
        check("lost_after", Err("has no chance"));
        check(r#"{"per_mille":{"garbage_200":7},"seed":3}"#, Ok(1));
        check(r#"{"per_cent":{}}"#, Err("unknown field"));
    }

    #[test]
    fn order_does_not_matter() {
        let run = |keys: &[&str]| {
            let mut faults = Faults::default();
            faults.set_plan(FaultPlan::seeded(7, 40, &FaultKind::ALL));
            let mut drawn: Vec<(String, Option<FaultKind>)> = Vec::new();
            for key in keys {
                let subject = Subject { key: (*key).to_owned(), ..Subject::default() };
                drawn.push(((*key).to_owned(), faults.decide(&subject)));
            }
            drawn.sort();
            drawn
        };
        assert_eq!(run(&["a", "b", "a", "c", "a"]), run(&["c", "a", "a", "b", "a"]));
    }
}
