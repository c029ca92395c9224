//! The half of the store that moves money, whose calls meet the accidents of a script.

use super::scripted_store::ScriptedStore;
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
use std::time::Duration;

#[async_trait]
impl Accounts for ScriptedStore {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        self.through("put_account", self.inner.put_account(account, at)).await
    }
    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        self.through("find_account", self.inner.find_account(tenant, name)).await
    }
    async fn list_accounts(
        &self,
        tenant: &TenantId,
        after: Option<&AccountName>,
        limit: usize,
    ) -> Result<Vec<Account>> {
        self.through("list_accounts", self.inner.list_accounts(tenant, after, limit)).await
    }
    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        self.through("post_entry", self.inner.post_entry(entry, at, completing)).await
    }
    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        self.through("find_entry", self.inner.find_entry(tenant, key)).await
    }
    async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>> {
        self.through("read_statement", self.inner.read_statement(query)).await
    }
}

#[async_trait]
impl Credits for ScriptedStore {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        self.through("issue_grant", self.inner.issue_grant(terms, at, completing)).await
    }
    async fn take_back(
        &self,
        order: TakeBack,
        at: Timestamp,
        completing: Option<&Completing<TakenBack>>,
    ) -> Result<TakenBack> {
        self.through("take_back", self.inner.take_back(order, at, completing)).await
    }
    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        self.through("expire_grants", self.inner.expire_grants(expired_by, at, limit)).await
    }
    async fn list_grants(
        &self,
        tenant: &TenantId,
        filter: GrantFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Grant>> {
        self.through("list_grants", self.inner.list_grants(tenant, filter, after, limit)).await
    }
    async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>> {
        self.through("list_credit_changes", self.inner.list_credit_changes(query)).await
    }
}

#[async_trait]
impl Sagas for ScriptedStore {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        self.through("begin_saga", self.inner.begin_saga(new, at, completing)).await
    }
    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        self.through("claim_sagas", self.inner.claim_sagas(now, lease_until, limit)).await
    }
    async fn record_saga(
        &self,
        claim: (u64, u64),
        lines: Vec<LogLine>,
        standing: Standing,
        messages: Vec<NewMessage>,
        at: Timestamp,
    ) -> Result<bool> {
        self.through("record_saga", self.inner.record_saga(claim, lines, standing, messages, at))
            .await
    }
    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        self.through("find_saga", self.inner.find_saga(id)).await
    }
    async fn list_sagas(&self, query: SagaQuery) -> Result<Vec<Saga>> {
        self.through("list_sagas", self.inner.list_sagas(query)).await
    }
    async fn revive_saga(&self, id: &str, at: Timestamp) -> Result<Revived> {
        self.through("revive_saga", self.inner.revive_saga(id, at)).await
    }
    async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp) -> Result<bool> {
        self.repeatable("put_hold", || self.inner.put_hold(claim, from, at)).await
    }
    async fn release_hold(&self, saga: &str) -> Result<bool> {
        self.repeatable("release_hold", || self.inner.release_hold(saga)).await
    }
    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        self.through("count_pushes_before", self.inner.count_pushes_before(tenant, before)).await
    }
    async fn list_unconfirmed_before(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        let call = self.inner.list_unconfirmed_before(tenant, before, limit);
        self.through("list_unconfirmed_before", call).await
    }
    async fn record_agreement(&self, agreement: Agreement) -> Result<()> {
        self.repeatable("record_agreement", || self.inner.record_agreement(agreement.clone())).await
    }
    async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()> {
        self.repeatable("charge_from", || self.inner.charge_from(saga, at)).await
    }
    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        self.repeatable("set_access", || self.inner.set_access(saga, access)).await
    }
    async fn withdraw_agreement(&self, saga: &str) -> Result<()> {
        self.repeatable("withdraw_agreement", || self.inner.withdraw_agreement(saga)).await
    }
    async fn end_agreement(&self, subscription: &SubscriptionId, at: Timestamp) -> Result<()> {
        self.repeatable("end_agreement", || self.inner.end_agreement(subscription, at)).await
    }
    async fn find_agreement(&self, subscription: &SubscriptionId) -> Result<Option<Agreement>> {
        self.through("find_agreement", self.inner.find_agreement(subscription)).await
    }

    async fn list_agreements(&self, tenant: &TenantId, limit: usize) -> Result<Vec<Agreement>> {
        self.through("list_agreements", self.inner.list_agreements(tenant, limit)).await
    }
}

#[async_trait]
impl Quotes for ScriptedStore {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        self.through("put_tax_rate", self.inner.put_tax_rate(rate, at)).await
    }
    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        self.through(
            "end_tax_rate",
            self.inner.end_tax_rate(jurisdiction, name, valid_from, valid_until),
        )
        .await
    }
    async fn list_tax_rates(&self, after: Option<RateKey>, limit: usize) -> Result<Vec<TaxRate>> {
        self.through("list_tax_rates", self.inner.list_tax_rates(after, limit)).await
    }
    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        self.through("put_coupon", self.inner.put_coupon(coupon, at)).await
    }
    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        self.through("find_coupon", self.inner.find_coupon(code)).await
    }
    async fn list_coupons(&self, after: Option<&str>, limit: usize) -> Result<Vec<Coupon>> {
        self.through("list_coupons", self.inner.list_coupons(after, limit)).await
    }
    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        self.through("find_quote", self.inner.find_quote(tenant, key)).await
    }
    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        self.through("read_coupon_uses", self.inner.read_coupon_uses(tenant, code, cycle)).await
    }
    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        self.through("record_quote", self.inner.record_quote(quote, coupon, completing)).await
    }
}

#[async_trait]
impl Messages for ScriptedStore {
    async fn record_messages(&self, messages: Vec<NewMessage>, at: Timestamp) -> Result<usize> {
        self.through("record_messages", self.inner.record_messages(messages, at)).await
    }
    async fn list_messages(
        &self,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Message>> {
        self.through("list_messages", self.inner.list_messages(tenant, after, limit)).await
    }
    async fn claim_messages(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        self.through("claim_messages", self.inner.claim_messages(now, lease_until, limit)).await
    }
    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.through("settle_message", self.inner.settle_message(number, fence, outcome, at)).await
    }
    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.through("prune_messages", self.inner.prune_messages(before, limit)).await
    }
}

#[async_trait]
impl RequestKeys for ScriptedStore {
    async fn claim_key(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
        at: Timestamp,
    ) -> std::result::Result<Claimed, StoreError> {
        self.inner.claim_key(scope, fingerprint, lease, at).await
    }
    async fn renew_key(
        &self,
        claim: &Claim,
        lease: Duration,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.inner.renew_key(claim, lease, at).await
    }
    async fn reach_key(&self, claim: &Claim, point: &str) -> std::result::Result<(), StoreError> {
        self.inner.reach_key(claim, point).await
    }
    async fn end_key(
        &self,
        claim: &Claim,
        ended: &Ended,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.inner.end_key(claim, ended, at).await
    }
    async fn release_key(
        &self,
        claim: &Claim,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.inner.release_key(claim, at).await
    }
    async fn forget_key(
        &self,
        claim: &Claim,
        at: Timestamp,
    ) -> std::result::Result<(), StoreError> {
        self.inner.forget_key(claim, at).await
    }
    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> std::result::Result<u32, StoreError> {
        self.inner.sweep_keys(limit, at).await
    }
}

#[async_trait]
impl Epochs for ScriptedStore {
    async fn read_life(&self) -> Result<Life> {
        self.inner.read_life().await
    }
    async fn read_epoch(&self) -> Result<Option<Epoch>> {
        self.inner.read_epoch().await
    }
    async fn record_restore(&self, cause: &Cause, at: Timestamp) -> Result<Epoch> {
        self.inner.record_restore(cause, at).await
    }
    async fn record_alive(&self, at: Timestamp) -> Result<()> {
        self.inner.record_alive(at).await
    }
}

#[async_trait]
impl Bindings for ScriptedStore {
    async fn read_binding(&self) -> Result<Option<Binding>> {
        self.inner.read_binding().await
    }
    async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding> {
        self.inner.bind(account, at).await
    }
    async fn end_binding(&self, at: Timestamp) -> Result<Unbinding> {
        self.inner.end_binding(at).await
    }
}
