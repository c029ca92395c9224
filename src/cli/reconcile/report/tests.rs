//! The report over passes small and large, friendly and hostile.

use super::examples::{moment, pass, row};
use super::*;

fn rendered(rows: &[RowAnswer]) -> String {
    render(&pass(rows), rows, &BillingHealth::default()).unwrap()
}

#[test]
fn a_small_report() {
    let mut rows = vec![
        row("acme", 1, ("120.5", "120.5", "118")),
        row("acme", 2, ("1200", "1200", "1200")),
        row("globex", 2, ("5", "5", "9")),
    ];
    rows[0].windows[0].action = Some("sent again as push 12".into());
    let mut pass = pass(&rows);
    (pass.apply, pass.replayed) = (true, 1);
    let html = render(&pass, &rows, &BillingHealth::default()).unwrap();
    let body = html.split("</style>").nth(1).unwrap().split("<script>").next().unwrap();
    insta::assert_snapshot!(body);
}

#[test]
fn an_empty_pass() {
    let html = rendered(&[]);
    assert!(html.contains("There was nothing to compare in this range."));
    assert!(html.contains("Every row is equal.") && html.contains("0 rows"));
}

#[test]
fn one_row() {
    let html = rendered(&[row("acme", 1, ("5", "5", "5"))]);
    assert!(html.contains("Ledger and provider agree in every window."));
    assert!(html.contains("24 <small>of 24</small>") && html.contains("<summary>1 row</summary>"));
    let html = rendered(&[row("acme", 1, ("5", "3", "3"))]);
    assert!(html.contains("Nothing drifts; 1 window will be looked at again."));
}

#[test]
fn quarantined_and_held_usage_is_among_what_is_not_billed() {
    let unbilled = r#"{"<b>": {"total": "36.5", "dead": "7", "quarantined": "13.5", "held": "16",
        "too_old": null}}"#;
    let unbilled = serde_json::from_str(unbilled).unwrap();
    let health = BillingHealth { unbilled, quarantined_more: true, ..BillingHealth::default() };
    let html = render(&pass(&[]), &[], &health).unwrap();
    for (cause, quantity) in
        [("dead", "7"), ("held", "16"), ("quarantined", "13.5"), ("total", "36.5")]
    {
        let cells = format!("<td>{cause}</td><td class=\"n\">{quantity}</td>");
        assert!(html.contains(&cells), "{cells}");
    }
    assert!(html.contains("more quarantined events than were added up") && !html.contains("<b>"));
    assert!(rendered(&[]).contains("Everything that was counted is billed"));
}

#[test]
fn no_name_becomes_markup() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror='x'>\"\u{202e}";
    let mut one = row(hostile, 1, ("5", "5", "2"));
    one.meter = hostile.into();
    one.advice = hostile.into();
    one.hash = Some(hostile.into());
    one.windows[0].action = Some(hostile.into());
    let rows = [one];
    let mut pass = pass(&rows);
    pass.tenant = Some(hostile.into());
    pass.hash = Some(hostile.into());
    pass.detail = Some(hostile.into());
    for state in PassState::ALL {
        pass.state = state;
        let html = render(&pass, &rows, &BillingHealth::default()).unwrap();
        assert_eq!(html.matches("<script").count(), 1, "only our own");
        assert!(!html.contains("<img") && !html.contains("onerror='x'"));
    }
}

#[test]
fn many_rows_stay_within_bounds() {
    let tenants: Vec<String> = (0..200).map(|tenant| format!("tenant-{tenant:03}")).collect();
    let rows: Vec<RowAnswer> = tenants
        .iter()
        .flat_map(|tenant| (1..=28).map(|day| row(tenant, day, ("1000.25", "1000.25", "998"))))
        .collect();
    let html = rendered(&rows);
    assert!(html.contains("4,600 more are not shown here.") && html.contains("600 more are not"));
    assert!(html.contains("192 tenants more with smaller differences"));
    assert!(html.len() < 6_000_000, "{} bytes", html.len());
    let chart = html.split("<svg").nth(2).unwrap();
    assert_eq!(chart.split("</svg>").next().unwrap().matches("<title>").count(), 28);
}

#[test]
fn long_ranges_share_bars() {
    let mut rows = vec![row("acme", 1, ("1", "1", "1")), row("acme", 2, ("2", "2", "1"))];
    rows[1].from = moment("2027-10-31T00:00:00Z");
    let html = rendered(&rows);
    assert!(html.contains("<title>2026-11-01 to 2026-11-08: ledger 1,"), "{html}");
    assert!(html.contains("to 2027-10-31: ledger 2, pushed 2, provider 1, difference -1<"));
}

#[test]
fn nothing_is_asked_from_anywhere() {
    let html = rendered(&[row("acme", 1, ("5", "5", "2"))]);
    for word in ["http://", "https://", "src=", "href=", "url(", "@import", " style=", " onclick="]
    {
        assert!(!html.contains(word), "{word}");
    }
    assert!(html.contains("default-src 'none'") && html.contains("script-src 'sha256-"));
}

#[test]
fn totals_too_large_are_refused() {
    let huge = "99999999999999999999999999";
    let rows = [row("a", 1, (huge, huge, huge)), row("b", 1, (huge, huge, huge))];
    let refusal = render(&pass(&rows), &rows, &BillingHealth::default()).unwrap_err().to_string();
    assert_eq!(refusal, "the totals of api_calls are too large to be added up");
}
