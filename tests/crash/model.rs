//! An exact model of what servers must answer about events of every kind, with arithmetic of its
//! own: decimals are whole numbers of 10^-12, times are microseconds, and nothing of the product's
//! rules is used.
//!
//! Each event key has up to three payloads: the event, a copy with another time, and one that
//! contradicts it. The first payload that a server commits counts. Which one that was follows from
//! the verdicts: `possible` holds the payloads that were sent before any verdict was known, and
//! each verdict narrows it. A request without an answer leaves its events uncertain: each may count
//! once or not at all. Usage is compared exactly where nothing is uncertain, and otherwise by its
//! bounds.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Two of them differ in case only, which a language's order of text takes for equal.
pub const TENANTS: [&str; 4] = ["acme", "Acme", "globex", "initech"];
pub const METERS: [Meter; 6] = [
    Meter { slug: "total", aggregation: Aggregation::Sum, bucket: "1h" },
    Meter { slug: "calls", aggregation: Aggregation::Count, bucket: "15m" },
    Meter { slug: "lowest", aggregation: Aggregation::Min, bucket: "1h" },
    Meter { slug: "highest", aggregation: Aggregation::Max, bucket: "1m" },
    Meter { slug: "newest", aggregation: Aggregation::Latest, bucket: "1h" },
    Meter { slug: "users", aggregation: Aggregation::Unique, bucket: "1d" },
];
pub const HOUR: i64 = 3_600_000_000;
pub const DAY: i64 = 24 * HOUR;
const UNIT: i128 = 10i128.pow(12);
/// Violations beyond this say nothing new.
const VIOLATIONS_MAX: usize = 20;

pub struct Meter {
    pub slug: &'static str,
    aggregation: Aggregation,
    bucket: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aggregation {
    Sum,
    Count,
    Min,
    Max,
    Latest,
    Unique,
}

impl Meter {
    /// Its declaration.
    pub fn spec(&self) -> Value {
        let (name, unique_property) = match self.aggregation {
            Aggregation::Sum => ("sum", None),
            Aggregation::Count => ("count", None),
            Aggregation::Min => ("min", None),
            Aggregation::Max => ("max", None),
            Aggregation::Latest => ("latest", None),
            Aggregation::Unique => ("unique", Some("user")),
        };
        serde_json::json!({
            "aggregation": name, "unique_property": unique_property, "bucket": self.bucket,
            "scale": 12, "precision": 27, "signed": true, "dimensions": ["region", "tier"],
        })
    }
}

/// What an event says, but for its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The place of its meter in [`METERS`].
    pub meter: usize,
    pub units: i128,
    pub at: i64,
    pub subscription: Option<&'static str>,
    pub trial: bool,
    pub region: Option<&'static str>,
    /// A number in JSON, in its shortest text.
    pub tier: Option<&'static str>,
    pub user: Option<u64>,
}

impl Payload {
    fn is_copy_of(&self, other: &Self) -> bool {
        *self == Self { at: self.at, ..other.clone() }
    }

    fn group(&self, by: &[&str]) -> Vec<Option<String>> {
        let value = |name: &&str| match *name {
            "subscription" => self.subscription.map(str::to_owned),
            "trial" => Some(self.trial.to_string()),
            "region" => self.region.map(str::to_owned),
            "tier" => self.tier.map(str::to_owned),
            other => panic!("nothing is grouped by {other}"),
        };
        by.iter().map(value).collect()
    }

    /// The same payload in one of two spellings.
    fn to_json(&self, tenant: &str, id: &str, respelled: bool) -> String {
        let at = jiff::Timestamp::from_microsecond(self.at).unwrap();
        let (sign, magnitude) = (if self.units < 0 { "-" } else { "" }, self.units.unsigned_abs());
        let (whole, fraction) = (magnitude / UNIT.unsigned_abs(), magnitude % UNIT.unsigned_abs());
        let fraction = format!("{fraction:012}");
        let mut properties = Vec::new();
        properties.extend(self.region.map(|region| format!("\"region\":\"{region}\"")));
        properties.extend(self.tier.map(|tier| format!("\"tier\":{tier}")));
        properties.extend(self.user.map(|user| format!("\"user\":\"u{user}\"")));
        let (at, fraction) = if respelled {
            properties.reverse();
            (at.display_with_offset(jiff::tz::offset(2)).to_string(), fraction)
        } else {
            let shortest = fraction.trim_end_matches('0');
            (at.to_string(), format!("{shortest}{}", if shortest.is_empty() { "0" } else { "" }))
        };
        let subscription = self.subscription.map(|id| format!(",\"subscription\":\"{id}\""));
        format!(
            "{{\"tenant\":\"{tenant}\",\"id\":\"{id}\",\"meter\":\"{}\",\"occurred_at\":\"{at}\",\
             \"quantity\":\"{sign}{whole}.{fraction}\",\"trial\":{},\"properties\":{{{}}}{}}}",
            METERS[self.meter].slug,
            self.trial,
            properties.join(","),
            subscription.unwrap_or_default(),
        )
    }
}

#[derive(Debug, Clone)]
struct Key {
    /// The place of its tenant in [`TENANTS`].
    tenant: usize,
    id: String,
    payloads: Vec<Payload>,
    /// Older than what is accepted: always quarantined, never counted.
    too_old: bool,
    /// Places of the payloads of which one may be the one that counts.
    possible: Vec<usize>,
    /// Whether an answer said that one of them counts.
    counted: bool,
    /// Whether an answer said `accepted`.
    accepted: bool,
    /// Whether an answer said `conflict`.
    contradicted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Duplicate,
    Restamped,
    Conflict,
    Quarantined,
}

impl Verdict {
    fn read(result: &Value) -> Option<Self> {
        match (result["outcome"].as_str()?, result["code"].as_str()) {
            ("accepted", None) => Some(Self::Accepted),
            ("duplicate", None) => Some(Self::Duplicate),
            ("duplicate", Some("restamped")) => Some(Self::Restamped),
            ("conflict", _) => Some(Self::Conflict),
            ("quarantined", Some("too_old")) => Some(Self::Quarantined),
            _ => None,
        }
    }

    /// Its name among the counters.
    fn counter(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate | Self::Restamped => "duplicates",
            Self::Conflict => "conflicts",
            Self::Quarantined => "quarantined",
        }
    }
}

impl Key {
    /// Takes a verdict on one of the payloads into account; false if it cannot be right.
    fn narrow(&mut self, payload: usize, verdict: Verdict, counted_before: bool) -> bool {
        if self.too_old || verdict == Verdict::Quarantined {
            return self.too_old && verdict == Verdict::Quarantined;
        }
        let sent = &self.payloads[payload];
        let fits = |other: usize| {
            let counted = &self.payloads[other];
            match verdict {
                Verdict::Accepted | Verdict::Duplicate => other == payload,
                Verdict::Restamped => counted.is_copy_of(sent) && counted.at != sent.at,
                Verdict::Conflict => !counted.is_copy_of(sent),
                Verdict::Quarantined => false,
            }
        };
        self.possible.retain(|other| fits(*other));
        let again = verdict == Verdict::Accepted && (self.accepted || counted_before);
        self.accepted |= verdict == Verdict::Accepted;
        self.contradicted |= verdict == Verdict::Conflict;
        self.counted = true;
        !again && !self.possible.is_empty()
    }

    fn is_certain(&self) -> bool {
        self.counted && self.possible.len() == 1
    }

    fn can_conflict(&self) -> bool {
        self.payloads.iter().any(|payload| !payload.is_copy_of(&self.payloads[0]))
    }
}

/// A payload of a key, to be sent in one of two spellings.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    pub key: usize,
    pub payload: usize,
    pub respelled: bool,
}

/// A question about usage.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    pub tenant: usize,
    pub meter: usize,
    pub window: Window,
    pub group_by: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    Hour,
    Day,
    Whole,
}

impl Question {
    /// Every bucket and group of a tenant's meter, its days, and some of its groups.
    pub fn all_of(tenant: usize, meter: usize) -> [Self; 3] {
        let finest = if METERS[meter].bucket == "1d" { Window::Day } else { Window::Hour };
        [
            (finest, &["subscription", "trial", "region", "tier"][..]),
            (Window::Day, &[]),
            (Window::Whole, &["tier", "trial"]),
        ]
        .map(|(window, group_by)| Self { tenant, meter, window, group_by })
    }

    /// How a request asks it.
    pub fn parameters(&self) -> String {
        let window = match self.window {
            Window::Hour => "hour",
            Window::Day => "day",
            Window::Whole => "none",
        };
        let group_by = match self.group_by {
            [] => String::new(),
            names => format!("&group_by={}", names.join(",")),
        };
        let (tenant, meter) = (TENANTS[self.tenant], METERS[self.meter].slug);
        format!("tenant={tenant}&meter={meter}&window={window}{group_by}")
    }
}

/// What is counted in one window and group.
#[derive(Debug, Clone, Default)]
struct Cell {
    certain: Total,
    /// How many more events may be counted here.
    uncertain: u64,
}

/// The events of a cell in the sense of every aggregation.
#[derive(Debug, Clone, Default)]
struct Total {
    count: u64,
    sum: i128,
    min: Option<i128>,
    max: Option<i128>,
    latest: Option<(i64, String, i128)>,
    users: BTreeSet<u64>,
}

impl Total {
    fn add(&mut self, id: &str, payload: &Payload) {
        let units = payload.units;
        self.count += 1;
        self.sum += units;
        self.min = Some(self.min.map_or(units, |min| min.min(units)));
        self.max = Some(self.max.map_or(units, |max| max.max(units)));
        self.latest = self.latest.take().max(Some((payload.at, id.to_owned(), units)));
        self.users.extend(payload.user);
    }

    /// None if there is no event, and no value without one.
    fn value(&self, aggregation: Aggregation) -> Option<i128> {
        match aggregation {
            Aggregation::Sum => Some(self.sum),
            Aggregation::Count => Some(i128::from(self.count) * UNIT),
            Aggregation::Min => self.min,
            Aggregation::Max => self.max,
            Aggregation::Latest => self.latest.as_ref().map(|(_, _, units)| *units),
            Aggregation::Unique => Some(i128::try_from(self.users.len()).unwrap() * UNIT),
        }
    }
}

/// By the start of the window and the values that it is grouped by.
type Place = (i64, Vec<Option<String>>);

/// What an answer may say, as known at one moment.
pub struct Usage {
    cells: BTreeMap<Place, Cell>,
    whole: Cell,
}

#[derive(Clone)]
pub struct Model {
    /// The time of the newest events.
    pub now: i64,
    keys: Vec<Key>,
    /// The keys with a payload of a tenant and meter.
    of_meter: BTreeMap<(usize, usize), Vec<usize>>,
    /// Verdicts that were answered, by tenant and counter.
    answered: BTreeMap<(usize, &'static str), u64>,
    /// Deliveries that were sent and not answered, by tenant.
    unanswered: [u64; TENANTS.len()],
    violations: Vec<String>,
}

impl Model {
    pub fn new(now: i64) -> Self {
        let (keys, of_meter, answered) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (unanswered, violations) = ([0; TENANTS.len()], Vec::new());
        Self { now, keys, of_meter, answered, unanswered, violations }
    }

    pub fn add_key(&mut self, tenant: usize, id: String, payloads: Vec<Payload>, too_old: bool) {
        let meters: BTreeSet<usize> = payloads.iter().map(|payload| payload.meter).collect();
        for meter in meters {
            self.of_meter.entry((tenant, meter)).or_default().push(self.keys.len());
        }
        let (possible, counted, accepted, contradicted) = (Vec::new(), false, false, false);
        let key = Key { tenant, id, payloads, too_old, possible, counted, accepted, contradicted };
        self.keys.push(key);
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn payloads_of(&self, key: usize) -> usize {
        self.keys[key].payloads.len()
    }

    /// Events that must be counted once everything was answered.
    pub fn events(&self) -> u64 {
        count(self.keys.iter().filter(|key| !key.too_old))
    }

    /// A request's body, a line for each event.
    pub fn body(&self, batch: &[Delivery]) -> String {
        let line = |delivery: &Delivery| {
            let key = &self.keys[delivery.key];
            let payload = &key.payloads[delivery.payload];
            payload.to_json(TENANTS[key.tenant], &key.id, delivery.respelled)
        };
        batch.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Notes that a batch is about to be sent; returns which of its keys are known to be counted.
    pub fn send(&mut self, batch: &[Delivery]) -> Vec<bool> {
        let mut send = |delivery: &Delivery| {
            let key = &mut self.keys[delivery.key];
            self.unanswered[key.tenant] += 1;
            if !key.counted && !key.possible.contains(&delivery.payload) {
                key.possible.push(delivery.payload);
            }
            key.counted
        };
        batch.iter().map(&mut send).collect()
    }

    /// Notes the answer to a batch. What was counted before it was sent must not be accepted.
    pub fn learn(&mut self, batch: &[Delivery], counted_before: &[bool], answer: &Value) {
        let results = answer["results"].as_array().map_or(&[][..], Vec::as_slice);
        if results.len() != batch.len() {
            return self.violate(format!("{} events were answered {answer}", batch.len()));
        }
        for ((delivery, counted_before), result) in batch.iter().zip(counted_before).zip(results) {
            let key = &mut self.keys[delivery.key];
            let verdict = Verdict::read(result)
                .filter(|_| result["id"] == *key.id && result["tenant"] == TENANTS[key.tenant]);
            let before = key.clone();
            if !verdict.is_some_and(|v| key.narrow(delivery.payload, v, *counted_before)) {
                let sent = delivery.payload;
                self.violate(format!("payload {sent} of {before:?} was answered {result}"));
                continue;
            }
            let (tenant, verdict) = (key.tenant, verdict.unwrap());
            self.unanswered[tenant] -= 1;
            *self.answered.entry((tenant, verdict.counter())).or_default() += 1;
        }
    }

    /// What may be answered to a question at this moment.
    pub fn usage(&self, question: &Question) -> Usage {
        let (mut cells, mut whole): (BTreeMap<Place, Cell>, _) = Default::default();
        let pair = (question.tenant, question.meter);
        let keys = self.of_meter.get(&pair).map_or(&[][..], Vec::as_slice);
        for key in keys.iter().map(|key| &self.keys[*key]).filter(|key| !key.too_old) {
            for payload in key.possible.iter().map(|place| &key.payloads[*place]) {
                if payload.meter != question.meter {
                    continue;
                }
                let place =
                    (self.window_start(question, payload.at), payload.group(question.group_by));
                for cell in [cells.entry(place).or_default(), &mut whole] {
                    match key.is_certain() {
                        true => cell.certain.add(&key.id, payload),
                        false => cell.uncertain += 1,
                    }
                }
            }
        }
        Usage { cells, whole }
    }

    fn window_start(&self, question: &Question, at: i64) -> i64 {
        match question.window {
            Window::Hour => at.div_euclid(HOUR) * HOUR,
            Window::Day => at.div_euclid(DAY) * DAY,
            Window::Whole => self.range().0,
        }
    }

    /// The first and the last moment that questions are about.
    pub fn range(&self) -> (i64, i64) {
        let today = self.now.div_euclid(DAY) * DAY;
        (today - 8 * DAY, today + 2 * DAY)
    }

    /// Compares an answer with what is known now and was known `before` it was asked for.
    pub fn compare(&mut self, question: &Question, before: &Usage, answer: &Value) {
        let now = self.usage(question);
        let aggregation = METERS[question.meter].aggregation;
        let mut found: BTreeMap<Place, &Value> = BTreeMap::new();
        for window in answer["windows"].as_array().unwrap_or_else(|| panic!("{answer}")) {
            let group = |name: &&str| window["group"][name].as_str().map(str::to_owned);
            let start: jiff::Timestamp = window["start"].as_str().unwrap().parse().unwrap();
            let group = question.group_by.iter().map(group).collect();
            let twice = found.insert((start.as_microsecond(), group), window);
            if twice.is_some() {
                self.violate(format!("{}: {window} is there twice", question.parameters()));
            }
        }
        let nothing = Cell::default();
        let places: BTreeSet<&Place> = now.cells.keys().chain(found.keys()).collect();
        for place in places {
            let [before, now] = [before, &now].map(|u| u.cells.get(place).unwrap_or(&nothing));
            let (count, value) = match found.get(place) {
                Some(window) => (window["count"].as_u64(), read_units(&window["value"])),
                None => (Some(0), nothing.certain.value(aggregation)),
            };
            if let Some(wrong) = judge(aggregation, before, now, count, value) {
                let (start, group) =
                    (jiff::Timestamp::from_microsecond(place.0).unwrap(), &place.1);
                self.violate(format!("{} from {start} {group:?}: {wrong}", question.parameters()));
            }
        }
        let (count, value) = (answer["count"].as_u64(), read_units(&answer["total"]));
        if let Some(wrong) = judge(aggregation, &before.whole, &now.whole, count, value) {
            self.violate(format!("{}: {wrong}", question.parameters()));
        }
    }

    /// Compares the counters' sums of a tenant, by counter, when everything was answered.
    pub fn compare_counters(&mut self, tenant: usize, found: &BTreeMap<String, u64>) {
        let own = self.keys.iter().filter(|key| key.tenant == tenant && !key.too_old);
        let accepted = count(own);
        let names = ["accepted", "duplicates", "conflicts", "quarantined"];
        let answered = |name| self.answered.get(&(tenant, name)).copied().unwrap_or(0);
        let least: u64 = names.map(answered).iter().sum();
        let found_of = |name| found.get(name).copied().unwrap_or(0);
        let received: u64 = names.map(found_of).iter().sum();
        let right = found_of("accepted") == accepted
            && found_of("received") == received
            && names.iter().all(|name| found_of(name) >= answered(name))
            && (least..=least + self.unanswered[tenant]).contains(&received);
        if !right {
            let answered = names.map(|name| (name, answered(name)));
            let unanswered = self.unanswered[tenant];
            self.violate(format!(
                "counters of {}: {found:?}, of {accepted} events, with {answered:?} answered \
                 and {unanswered} unanswered",
                TENANTS[tenant]
            ));
        }
    }

    /// Compares the keys, each a tenant and id, of an inbox: of conflicts, or of quarantine.
    pub fn compare_inbox(&mut self, inbox: Inbox, found: &BTreeSet<(String, String)>) {
        let name = |key: &Key| (TENANTS[key.tenant].to_owned(), key.id.clone());
        let listed = |filter: fn(&Key) -> bool| -> BTreeSet<_> {
            self.keys.iter().filter(|key| filter(key)).map(name).collect()
        };
        let (least, most) = match inbox {
            Inbox::Conflicts => (listed(|key| key.contradicted), listed(Key::can_conflict)),
            Inbox::Quarantine => (listed(|key| key.too_old), listed(|key| key.too_old)),
        };
        let missing: Vec<_> = least.difference(found).take(3).collect();
        let more: Vec<_> = found.difference(&most).take(3).collect();
        if !missing.is_empty() || !more.is_empty() {
            self.violate(format!("{inbox:?}: missing {missing:?}, wrong {more:?}"));
        }
    }

    /// Whether everything is known: each key was answered and one payload of it counts.
    pub fn demand_certainty(&mut self) {
        let open = self.keys.iter().find(|key| !key.too_old && !key.is_certain());
        if let Some(what) = open.map(|key| format!("it is not known what counts of {key:?}")) {
            self.violate(what);
        }
    }

    pub fn violate(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    pub fn violations(&self) -> &[String] {
        &self.violations
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Inbox {
    Conflicts,
    Quarantine,
}

/// What is wrong with a count and a value, given what was known before and after.
fn judge(
    aggregation: Aggregation,
    before: &Cell,
    after: &Cell,
    count: Option<u64>,
    value: Option<i128>,
) -> Option<String> {
    let (least, most) = (before.certain.count, after.certain.count + after.uncertain);
    if !count.is_some_and(|count| (least..=most).contains(&count)) {
        return Some(format!("{count:?} events, and there are {least} to {most}"));
    }
    let expected = after.certain.value(aggregation);
    // Between the bounds any of several values is right.
    (least == most && value != expected)
        .then(|| format!("{value:?} of {least} events, and it is {expected:?}, in units of 10^-12"))
}

/// A decimal number in units of 10^-12; None for null.
fn read_units(value: &Value) -> Option<i128> {
    let text = value.as_str()?;
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    assert!(fraction.len() <= 12, "{text} has too many decimals");
    Some(sign * format!("{whole}{fraction:0<12}").parse::<i128>().unwrap())
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    u64::try_from(items.count()).unwrap()
}

/// An answer that differs from the right one in anything is found.
#[test]
fn wrong_answers_are_found() {
    let at = jiff::Timestamp::from_second(1_800_000_000).unwrap().as_microsecond();
    let payload = |meter, units, at, user| {
        let (subscription, region, tier) = (Some("sub_1"), Some("eu"), None);
        Payload { meter, units, at, subscription, trial: true, region, tier, user: Some(user) }
    };
    let five = 5 * UNIT;
    let values = ["-1.000000000003", "3", "-5", "4", "-0.000000000003", "2"];
    for (meter, value) in values.iter().enumerate() {
        let mut model = Model::new(at);
        // The last two tie, and `a` is behind `B` only in the order of bytes.
        let events = [("c", -five, 0, 1), ("a", -3, 9, 2), ("B", five - UNIT, 9, 1)];
        for (place, (id, units, later, user)) in events.into_iter().enumerate() {
            let payload = payload(meter, units, at + later, user);
            model.add_key(0, id.to_owned(), vec![payload], false);
            let batch = [Delivery { key: place, payload: 0, respelled: false }];
            let counted_before = model.send(&batch);
            let result = serde_json::json!({"tenant": "acme", "id": id, "outcome": "accepted"});
            model.learn(&batch, &counted_before, &serde_json::json!({"results": [result]}));
        }
        let question = Question::all_of(0, meter)[0];
        let start = model.window_start(&question, at);
        let start = jiff::Timestamp::from_microsecond(start).unwrap().to_string();
        let group = serde_json::json!({
            "subscription": "sub_1", "trial": "true", "region": "eu", "tier": null,
        });
        let window = serde_json::json!({
            "start": start, "count": 3, "value": value, "group": group,
        });
        let right = serde_json::json!({"count": 3, "total": value, "windows": [window]});
        let finds = |change: fn(&mut Value)| {
            let (mut model, mut answer) = (model.clone(), right.clone());
            change(&mut answer);
            let before = model.usage(&question);
            model.compare(&question, &before, &answer);
            !model.violations().is_empty()
        };
        assert!(!finds(|_| {}), "{value} is right");
        assert!(finds(|answer| answer["total"] = "7.000000000001".into()));
        assert!(finds(|answer| answer["count"] = 4.into()));
        assert!(finds(|answer| answer["windows"] = Value::Array(Vec::new())));
        assert!(finds(|answer| answer["windows"][0]["value"] = "0.000000000001".into()));
        assert!(finds(|answer| answer["windows"][0]["count"] = 2.into()));
        assert!(finds(|answer| answer["windows"][0]["group"]["tier"] = "2.5".into()));
        assert!(finds(|answer| answer["windows"][0]["start"] = "2027-01-15T03:00:00Z".into()));
    }
}

/// A key has one payload that counts, and is accepted once.
#[test]
fn wrong_verdicts_are_found() {
    let first = Payload {
        meter: 0,
        units: 1,
        at: 0,
        subscription: None,
        trial: false,
        region: None,
        tier: None,
        user: None,
    };
    let (copy, other) = (Payload { at: 1, ..first.clone() }, Payload { units: 2, ..first.clone() });
    let finds = |verdicts: &[(usize, &str, Option<&str>)]| {
        let mut model = Model::new(0);
        let payloads = vec![first.clone(), copy.clone(), other.clone()];
        model.add_key(0, "e".to_owned(), payloads, false);
        for (payload, outcome, code) in verdicts {
            let batch = [Delivery { key: 0, payload: *payload, respelled: false }];
            let counted_before = model.send(&batch);
            let result = serde_json::json!({
                "tenant": "acme", "id": "e", "outcome": outcome, "code": code,
            });
            model.learn(&batch, &counted_before, &serde_json::json!({"results": [result]}));
        }
        !model.violations().is_empty()
    };
    let (accepted, duplicate) = ("accepted", "duplicate");
    let (restamped, conflict) = ((1, duplicate, Some("restamped")), (2, "conflict", None));
    assert!(!finds(&[(0, accepted, None), (0, duplicate, None), restamped, conflict]));
    assert!(finds(&[(0, accepted, None), (0, accepted, None)]));
    assert!(finds(&[(0, duplicate, None), (0, accepted, None)]));
    assert!(finds(&[(0, accepted, None), (1, duplicate, None)]));
    assert!(finds(&[(0, accepted, None), (2, duplicate, None)]));
    assert!(finds(&[(0, accepted, None), (1, "conflict", None)]));
    assert!(finds(&[(0, accepted, None), (0, "quarantined", Some("too_old"))]));
    assert!(finds(&[(0, "rejected", None)]));
    assert!(finds(&[conflict]), "there is nothing that it could contradict");
}
