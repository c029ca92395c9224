//! `/v1/tenants`: who is billed. For keys that are bound to no tenant: others would learn who else
//! is a customer.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Path, Query, Request, list_query, read_json};
use super::problem::{Kind, Problem};
use crate::api::tenants::{TenantAnswer, TenantList, TenantSpec};
use crate::rules::given::Given;
use crate::rules::ids::{CustomerId, TenantId};
use crate::store::{Tenant, TenantFields, TenantPut};

/// Longest name of a tenant, in bytes of UTF-8.
const NAME_BYTES_MAX: usize = 200;

list_query!(TenantQuery, "The last tenant of the page before.", after: String
    (min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"), {});

/// Create a tenant, rename it, or map it to a customer
#[utoipa::path(
    put, path = "/v1/tenants/{id}", tag = "tenants", request_body = TenantSpec,
    params(("id" = String, Path, description = "The tenant's id")),
    responses(
        (status = 200, description = "The tenant as it is now", body = TenantAnswer),
        (status = 409, description = "The customer is mapped to another tenant"),
        (status = 422, description = "The name or the customer is invalid"),
    )
)]
pub async fn put_tenant(
    Call { app, caller }: Call,
    Path(id): Path<String>,
    request: Request,
) -> Answer<TenantAnswer> {
    caller.require_unbound(Scope::Admin)?;
    let id = TenantId::parse_new(&id)?;
    let TenantSpec { name, customer } = read_json(request, &app).await?;
    if let Given::Value(name) = &name
        && (name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control))
    {
        return Err(Problem::new(
            Kind::Refused,
            "invalid_name",
            format!("a name has at most {NAME_BYTES_MAX} bytes and no control characters"),
        ));
    }
    let unmap = matches!(customer, Given::Null);
    let customer = match customer {
        Given::Value(customer) => Some(parse_customer(&app, &customer)?),
        Given::Null | Given::LeftOut => None,
    };
    let name = match name {
        Given::Value(name) => Some(name),
        Given::Null => Some(String::new()),
        Given::LeftOut => None,
    };
    let fields = TenantFields { name, customer, unmap };
    match app.store.put_tenant(&id, fields, app.clock.now()).await? {
        TenantPut::Stored(tenant) => Ok(axum::Json(tenant.into())),
        TenantPut::CustomerTaken(holder) => Err(Problem::new(
            Kind::Conflict,
            "customer_taken",
            format!(
                "tenant {holder} is this customer; two tenants of one customer cannot be kept \
                 apart in the provider's totals, so give each tenant a customer of its own"
            ),
        )),
    }
}

/// Stripe's ids of customers begin with `cus_`; another name could never be billed.
fn parse_customer(app: &App, text: &str) -> Result<CustomerId, Problem> {
    let customer = CustomerId::parse(text)?;
    let stripe = app.provider.as_ref().is_some_and(|provider| provider.name() == "stripe");
    if stripe && !text.starts_with("cus_") {
        let detail = "customer is the id of a customer at Stripe, such as cus_9s6XKzkNRiz8i3";
        return Err(Problem::new(Kind::Refused, "invalid_customer", detail));
    }
    Ok(customer)
}

/// Read a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{id}", tag = "tenants",
    params(("id" = String, Path, description = "The tenant's id")),
    responses(
        (status = 200, description = "The tenant", body = TenantAnswer),
        (status = 404, description = "There is no such tenant"),
    )
)]
pub async fn get_tenant(
    Call { app, caller }: Call,
    Path(id): Path<String>,
) -> Answer<TenantAnswer> {
    let id = caller.any_tenant_for(Scope::Read, &id)?;
    let tenant = app.store.find_tenant(&id).await?.ok_or_else(|| {
        Problem::new(
            Kind::NotFound,
            "unknown_tenant",
            "there is no such tenant; PUT /v1/tenants/{id} or its first event creates it",
        )
    })?;
    Ok(axum::Json(tenant.into()))
}

/// List tenants
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants", params(TenantQuery),
    responses((status = 200, description = "A page, in the order of ids", body = TenantList))
)]
pub async fn list_tenants(
    Call { app, caller }: Call,
    Query(query): Query<TenantQuery>,
) -> Answer<TenantList> {
    caller.require_unbound(Scope::Read)?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(TenantId::parse).transpose()?;
    let found = app.store.list_tenants(limit.query((), after)).await?;
    limit.page(found, |tenant| tenant.id.to_string(), |tenant| Ok(tenant.into()))
}

impl From<Tenant> for TenantAnswer {
    fn from(tenant: Tenant) -> Self {
        let Tenant { id, name, customer, created_at } = tenant;
        let customer = customer.map(|customer| customer.to_string());
        Self { id: id.to_string(), name, customer, created_at }
    }
}
