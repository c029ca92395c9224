//! The half of the store that moves money, which can be switched off.

use super::failing_store::FailingStore;
use async_trait::async_trait;
use counterfoil::rules::account::*;
use counterfoil::rules::binding::{BillingAccount, Binding, Unbinding};
use counterfoil::rules::credit::*;
use counterfoil::rules::ids::*;
use counterfoil::rules::restore::{Cause, Life};
use counterfoil::rules::saga::*;
use counterfoil::rules::tax::*;
use counterfoil::rules::timestamp::*;
use counterfoil::store::Result;
use counterfoil::store::account::*;
use counterfoil::store::alert::NoticeOutcome;
use counterfoil::store::binding::Bindings;
use counterfoil::store::credit::*;
use counterfoil::store::epoch::{Epoch, Epochs};
use counterfoil::store::idempotency::*;
use counterfoil::store::message::*;
use counterfoil::store::push::SubmittedWindow;
use counterfoil::store::quote::*;
use counterfoil::store::saga::*;
use counterfoil_idempotency::{Claim, Claimed, Fingerprint, Scope, StoreError};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[async_trait]
impl Accounts for FailingStore {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        self.up()?.put_account(account, at).await
    }
    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        self.up()?.find_account(tenant, name).await
    }
    async fn list_accounts(
        &self,
        tenant: &TenantId,
        after: Option<&AccountName>,
        limit: usize,
    ) -> Result<Vec<Account>> {
        self.up()?.list_accounts(tenant, after, limit).await
    }
    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        self.up()?.post_entry(entry, at, completing).await
    }
    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        self.up()?.find_entry(tenant, key).await
    }
    async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>> {
        self.up()?.read_statement(query).await
    }
}

#[async_trait]
impl Credits for FailingStore {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        self.up()?.issue_grant(terms, at, completing).await
    }
    async fn take_back(
        &self,
        order: TakeBack,
        at: Timestamp,
        completing: Option<&Completing<TakenBack>>,
    ) -> Result<TakenBack> {
        self.up()?.take_back(order, at, completing).await
    }
    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        self.up()?.expire_grants(expired_by, at, limit).await
    }
    async fn list_grants(
        &self,
        tenant: &TenantId,
        filter: GrantFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Grant>> {
        let grants = self.up()?.list_grants(tenant, filter, after, limit).await;
        self.grants_read.fetch_add(1, Ordering::SeqCst);
        drop(self.grants_gate.read().await);
        grants
    }
    async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>> {
        self.up()?.list_credit_changes(query).await
    }
}

#[async_trait]
impl Sagas for FailingStore {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        self.up()?.begin_saga(new, at, completing).await
    }
    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        self.up()?.claim_sagas(now, lease_until, limit).await
    }
    async fn record_saga(
        &self,
        claim: (u64, u64),
        lines: Vec<LogLine>,
        standing: Standing,
        messages: Vec<NewMessage>,
        at: Timestamp,
    ) -> Result<bool> {
        self.up()?.record_saga(claim, lines, standing, messages, at).await
    }
    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        self.up()?.find_saga(id).await
    }
    async fn list_sagas(&self, query: SagaQuery) -> Result<Vec<Saga>> {
        self.up()?.list_sagas(query).await
    }
    async fn revive_saga(&self, id: &str, at: Timestamp) -> Result<Revived> {
        self.up()?.revive_saga(id, at).await
    }
    async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp) -> Result<bool> {
        self.up()?.put_hold(claim, from, at).await
    }
    async fn release_hold(&self, saga: &str) -> Result<bool> {
        self.up()?.release_hold(saga).await
    }
    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        self.up()?.count_pushes_before(tenant, before).await
    }
    async fn list_unconfirmed_before(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        self.up()?.list_unconfirmed_before(tenant, before, limit).await
    }
    async fn record_agreement(&self, agreement: Agreement) -> Result<()> {
        self.up()?.record_agreement(agreement).await
    }
    async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()> {
        self.up()?.charge_from(saga, at).await
    }
    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        self.up()?.set_access(saga, access).await
    }
    async fn withdraw_agreement(&self, saga: &str) -> Result<()> {
        self.up()?.withdraw_agreement(saga).await
    }
    async fn end_agreement(&self, subscription: &SubscriptionId, at: Timestamp) -> Result<()> {
        self.up()?.end_agreement(subscription, at).await
    }
    async fn find_agreement(&self, subscription: &SubscriptionId) -> Result<Option<Agreement>> {
        self.up()?.find_agreement(subscription).await
    }

    async fn list_agreements(&self, tenant: &TenantId, limit: usize) -> Result<Vec<Agreement>> {
        self.up()?.list_agreements(tenant, limit).await
    }
}

#[async_trait]
impl Quotes for FailingStore {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        self.up()?.put_tax_rate(rate, at).await
    }
    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        self.up()?.end_tax_rate(jurisdiction, name, valid_from, valid_until).await
    }
    async fn list_tax_rates(&self, after: Option<RateKey>, limit: usize) -> Result<Vec<TaxRate>> {
        self.up()?.list_tax_rates(after, limit).await
    }
    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        self.up()?.put_coupon(coupon, at).await
    }
    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        self.up()?.find_coupon(code).await
    }
    async fn list_coupons(&self, after: Option<&str>, limit: usize) -> Result<Vec<Coupon>> {
        self.up()?.list_coupons(after, limit).await
    }
    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        self.up()?.find_quote(tenant, key).await
    }
    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        self.up()?.read_coupon_uses(tenant, code, cycle).await
    }
    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        self.up()?.record_quote(quote, coupon, completing).await
    }
}

#[async_trait]
impl Messages for FailingStore {
    async fn record_messages(&self, messages: Vec<NewMessage>, at: Timestamp) -> Result<usize> {
        self.up()?.record_messages(messages, at).await
    }
    async fn list_messages(
        &self,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Message>> {
        self.up()?.list_messages(tenant, after, limit).await
    }
    async fn claim_messages(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        self.up()?.claim_messages(now, lease_until, limit).await
    }
    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.up()?.settle_message(number, fence, outcome, at).await
    }
    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.up()?.prune_messages(before, limit).await
    }
}

#[async_trait]
impl RequestKeys for FailingStore {
    async fn claim_key(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
        at: Timestamp,
    ) -> std::result::Result<Claimed, StoreError> {
        self.up_for_keys()?.claim_key(scope, fingerprint, lease, at).await
    }
    async fn renew_key(
        &self,
        claim: &Claim,
        lease: Duration,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.up_for_keys()?.renew_key(claim, lease, at).await
    }
    async fn reach_key(&self, claim: &Claim, point: &str) -> std::result::Result<(), StoreError> {
        self.up_for_keys()?.reach_key(claim, point).await
    }
    async fn end_key(
        &self,
        claim: &Claim,
        ended: &Ended,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.up_for_keys()?.end_key(claim, ended, at).await
    }
    async fn release_key(
        &self,
        claim: &Claim,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.up_for_keys()?.release_key(claim, at).await
    }
    async fn forget_key(
        &self,
        claim: &Claim,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.up_for_keys()?.forget_key(claim, at).await
    }
    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> std::result::Result<u32, StoreError> {
        self.up_for_keys()?.sweep_keys(limit, at).await
    }
}

#[async_trait]
impl Epochs for FailingStore {
    async fn read_life(&self) -> Result<Life> {
        self.up()?.read_life().await
    }
    async fn read_epoch(&self) -> Result<Option<Epoch>> {
        self.up()?.read_epoch().await
    }
    async fn record_restore(&self, cause: &Cause, at: Timestamp) -> Result<Epoch> {
        self.up()?.record_restore(cause, at).await
    }
    async fn record_alive(&self, at: Timestamp) -> Result<()> {
        self.up()?.record_alive(at).await
    }
}

#[async_trait]
impl Bindings for FailingStore {
    async fn read_binding(&self) -> Result<Option<Binding>> {
        self.up()?.read_binding().await
    }
    async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding> {
        self.up()?.bind(account, at).await
    }
    async fn end_binding(&self, at: Timestamp) -> Result<Unbinding> {
        self.up()?.end_binding(at).await
    }
}
