//! `/v1/tenants/{id}/accounts` and `/entries`: double entry.
//!
//! Invariant: an entry is written once under its idempotency key, and the key ends with it.
//! Accounts of credits are read here and moved by credits only.

use super::auth::Scope;
use super::extract::{
    Answer, Call, Limit, Path, Query, Request, list_query, parse_amount, read_json,
};
use super::idempotency::Once;
use super::problem::{Kind, Problem};
use crate::api::accounts::{
    AccountAnswer, AccountList, AccountSpec, EntryAnswer, EntrySpec, PostingSpec, Statement,
};
use crate::rules::account::{NewEntry, NewPosting, PostRefusal, is_reserved, is_reserved_key};
use crate::rules::ids::{AccountName, OnceKey, TenantId, Unit};
use crate::store::account::{AccountPut, NewAccount, Posted};
use axum::body::Body;
use axum::response::Response;
use http::StatusCode;

/// Longest memo, in bytes.
const MEMO_BYTES_MAX: usize = 500;

list_query!(AccountParameters, "The last account of the page before.", after: String
    (min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"), {});

/// Create a bookkeeping account of a tenant
///
/// For double entry of your own; independent of Stripe accounts and of credits. Over a tenant's
/// accounts of one unit, balances always sum to 0.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/accounts/{account}", tag = "accounts",
    request_body = AccountSpec,
    params(("tenant" = String, Path), ("account" = String, Path)),
    responses(
        (status = 200, description = "The account as it is", body = AccountAnswer),
        (status = 409, description = "It exists with another unit or floor"),
        (status = 422, description = "The name or the unit is refused"),
    )
)]
pub async fn put_account(
    Call { app, caller }: Call,
    Path((tenant, name)): Path<(String, String)>,
    request: Request,
) -> Answer<AccountAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let (tenant, name) = (TenantId::parse(&tenant)?, AccountName::parse(&name)?);
    let AccountSpec { unit, floor } = read_json(request, &app).await?;
    if is_reserved(&name) {
        let detail = "accounts of credits are kept by the server; choose another name";
        return Err(Problem::new(Kind::Refused, "account_reserved", detail));
    }
    let unit = Unit::parse(&unit).map_err(Problem::refused)?;
    let account = NewAccount { tenant, name, unit, floor };
    match app.store.put_account(account, app.clock.now()).await? {
        AccountPut::Created(account) | AccountPut::Unchanged(account) => {
            Ok(axum::Json(account.into()))
        }
        AccountPut::Refused(account) => Err(Problem::new(
            Kind::Conflict,
            "account_differs",
            format!(
                "account {} is of {} with floor {}; neither can change: use another name",
                account.name,
                account.unit,
                account.floor.name()
            ),
        )),
    }
}

/// List a tenant's accounts
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/accounts", tag = "accounts",
    params(("tenant" = String, Path), AccountParameters),
    responses((status = 200, description = "A page, in the order of names", body = AccountList))
)]
pub async fn list_accounts(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    Query(query): Query<AccountParameters>,
) -> Answer<AccountList> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(AccountName::parse).transpose()?;
    let found = app.store.list_accounts(limit.query(tenant, after)).await?;
    limit.page(found, |account| account.name.to_string(), |account| Ok(account.into()))
}

/// Read an account
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/accounts/{account}", tag = "accounts",
    params(("tenant" = String, Path), ("account" = String, Path)),
    responses(
        (status = 200, description = "The account", body = AccountAnswer),
        (status = 404, description = "There is no such account"),
    )
)]
pub async fn get_account(
    Call { app, caller }: Call,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<AccountAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let name = AccountName::parse(&name)?;
    let found = app.store.find_account(&tenant, &name).await?;
    Ok(axum::Json(found.ok_or_else(unknown_account)?.into()))
}

fn unknown_account() -> Problem {
    let detail = "the tenant has no such account; PUT creates it";
    Problem::new(Kind::NotFound, "unknown_account", detail)
}

list_query!(StatementParameters, before, {});

/// Read an account's statement
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/accounts/{account}/statement", tag = "accounts",
    params(("tenant" = String, Path), ("account" = String, Path), StatementParameters),
    responses(
        (status = 200, description = "A page of statement lines", body = Statement),
        (status = 404, description = "There is no such account"),
    )
)]
pub async fn get_statement(
    Call { app, caller }: Call,
    Path((tenant, name)): Path<(String, String)>,
    Query(query): Query<StatementParameters>,
) -> Answer<Statement> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let account = AccountName::parse(&name)?;
    let limit = Limit::parse(query.limit)?;
    app.store.find_account(&tenant, &account).await?.ok_or_else(unknown_account)?;
    let found = app.store.read_statement(limit.query((tenant, account), query.before)).await?;
    limit.page(found, |line| line.version, |line| Ok(line.into()))
}

/// Write an entry
///
/// All of it is written, or nothing. The same request under the same `Idempotency-Key` is answered
/// again and never written twice, even after the key has expired.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/entries", tag = "accounts", request_body = EntrySpec,
    params(("tenant" = String, Path)),
    responses(
        (status = 201, description = "The entry as it was written", body = EntryAnswer),
        (status = 409, description = "Another entry has this key, or `expected_version` does not match"),
        (status = 422, description = "It does not balance, or a balance would be too low"),
    )
)]
pub async fn post_entry(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let (once, EntrySpec { memo, postings }) = Once::read(request, &app).await?;
    let memo = parse_memo(memo)?;
    let postings: Vec<NewPosting> =
        postings.into_iter().map(read_posting).collect::<Result<_, Problem>>()?;
    if is_reserved_key(&once.key) {
        let detail = "keys that begin with credits. are the server's own; use another key";
        return Err(Problem::new(Kind::Refused, "key_reserved", detail));
    }
    let entry = NewEntry { tenant, key: once.key.clone(), memo, postings };
    let completing = once.completing(answer_posted);
    let posted = app.store.post_entry(entry, app.clock.now(), Some(&completing)).await?;
    Ok(Once::respond(&completing, &posted))
}

fn read_posting(spec: PostingSpec) -> Result<NewPosting, Problem> {
    let account = AccountName::parse(&spec.account).map_err(Problem::refused)?;
    if is_reserved(&account) {
        let detail = format!("account {account} is moved by credits only; see /v1/…/grants");
        return Err(Problem::new(Kind::Refused, "account_reserved", detail));
    }
    let amount = parse_amount(&spec.amount)?;
    Ok(NewPosting { account, amount, expected_version: spec.expected_version })
}

/// Text for people, of bounded length.
pub fn parse_memo(memo: String) -> Result<String, Problem> {
    if memo.len() > MEMO_BYTES_MAX || memo.chars().any(char::is_control) {
        let detail = format!("memo has at most {MEMO_BYTES_MAX} bytes and no control characters");
        return Err(Problem::new(Kind::Refused, "invalid_memo", detail));
    }
    Ok(memo)
}

fn answer_posted(posted: &Posted) -> Result<(StatusCode, EntryAnswer), Problem> {
    match posted {
        Posted::Recorded(entry) | Posted::Repeated(entry) => {
            Ok((StatusCode::CREATED, entry.into()))
        }
        Posted::KeyTaken(entry) => Err(key_taken("entry", &entry.key)),
        Posted::Refused(refusal) => {
            let kind = match refusal {
                PostRefusal::Moved(..) => Kind::Conflict,
                PostRefusal::Postings
                | PostRefusal::Repeated(_)
                | PostRefusal::Nothing(_)
                | PostRefusal::Unknown(_)
                | PostRefusal::Unbalanced(..)
                | PostRefusal::BelowZero(..)
                | PostRefusal::TooLarge => Kind::Refused,
            };
            let refusal = refusal.to_refusal();
            Err(Problem::new(kind, refusal.code, refusal.detail))
        }
    }
}

/// Something else was done under the key, longer ago than keys are remembered.
pub fn key_taken(what: &str, key: &OnceKey) -> Problem {
    let detail = format!("another {what} has the key {key}; use a new key");
    Problem::new(Kind::Conflict, "key_taken", detail)
}

/// Read an entry
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/entries/{key}", tag = "accounts",
    params(("tenant" = String, Path), ("key" = String, Path)),
    responses(
        (status = 200, description = "The entry", body = EntryAnswer),
        (status = 404, description = "There is no such entry"),
    )
)]
pub async fn get_entry(
    Call { app, caller }: Call,
    Path((tenant, key)): Path<(String, String)>,
) -> Answer<EntryAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let found = app.store.find_entry(&tenant, &OnceKey::parse(&key)?).await?;
    let unknown = || Problem::new(Kind::NotFound, "unknown_entry", "there is no such entry");
    Ok(axum::Json((&found.ok_or_else(unknown)?).into()))
}
