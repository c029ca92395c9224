// Stripe's own Node SDK against `counterfoil stripe-sim`: what the SDK makes of the answers is what
// a program written for Stripe would see. Started by `cargo xtask stripe-sdk`, which says in the
// environment where the simulator and the SDK are.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { test } from 'node:test';

const url = new URL(process.env.STRIPE_SIM_URL);
const Stripe = createRequire(`${process.env.STRIPE_SDK_FOLDER}/`)('stripe');
const client = (key) =>
  new Stripe(key, {
    host: url.hostname,
    port: Number(url.port),
    protocol: 'http',
    maxNetworkRetries: 0,
    telemetry: false,
  });
const stripe = client('sk_test_node');

const HOUR = 3600;
const now = () => Math.floor(Date.now() / 1000);
// Taken once, so that no test sees the hour change.
const thisHour = now() - (now() % HOUR);
let number = 0;

// A customer and a meter of its own for each test.
async function world(settings = {}) {
  number += 1;
  const event_name = `node_${now()}_${number}`;
  const customer = await stripe.customers.create({ name: 'Ada', metadata: { tenant: 'acme' } });
  const meter = await stripe.billing.meters.create({
    display_name: 'Calls',
    event_name,
    default_aggregation: { formula: 'sum' },
    ...settings,
  });
  const event = (identifier, value, timestamp = now()) => ({
    event_name,
    identifier: `${event_name}-${identifier}`,
    timestamp,
    payload: { stripe_customer_id: customer.id, value },
  });
  return { customer, meter, event, event_name };
}

async function simulator(path, body) {
  const answer = await fetch(new URL(path, url), { method: 'POST', body: JSON.stringify(body) });
  assert.equal(answer.status, 200, await answer.text());
}

// Waits for one webhook; gives its body as it came, and its signature.
async function receiver() {
  let deliver;
  const received = new Promise((resolve) => (deliver = resolve));
  const server = createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      response.writeHead(200).end();
      deliver({
        body: Buffer.concat(parts).toString(),
        signature: request.headers['stripe-signature'],
      });
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}/hook`, received, close };
}

test('a key is needed', async () => {
  await assert.rejects(client('pk_nothing').customers.list(), (error) => {
    assert.ok(error instanceof Stripe.errors.StripeAuthenticationError);
    return true;
  });
});

test('customers', async () => {
  const { customer } = await world();
  assert.match(customer.id, /^cus_/);
  assert.equal((await stripe.customers.retrieve(customer.id)).metadata.tenant, 'acme');
  const seen = [];
  for await (const found of stripe.customers.list({ limit: 2 })) {
    seen.push(found.id);
    if (seen.length === 5) break;
  }
  assert.ok(seen.includes(customer.id));
  assert.equal((await stripe.customers.del(customer.id)).deleted, true);
  await assert.rejects(stripe.customers.retrieve('cus_none'), { code: 'resource_missing' });
});

test('customers are made once under a key, marked, and listed by time', async () => {
  const since = now();
  const email = `node_${since}@example.com`;
  const metadata = { counterfoil_tenant: 'acme', counterfoil_saga: 'saga_1' };
  const make = (name) =>
    stripe.customers.create({ name, email, metadata }, { idempotencyKey: `${email}-customer` });
  const customer = await make('Ada');
  const again = await make('Ada');
  assert.equal(again.id, customer.id);
  assert.equal(again.lastResponse.headers['idempotent-replayed'], 'true');
  await assert.rejects(make('Bob'), Stripe.errors.StripeIdempotencyError);

  const marked = await stripe.customers.update(customer.id, {
    name: '',
    metadata: { counterfoil_state: 'abandoned', counterfoil_tenant: '' },
  });
  assert.equal(marked.name, null);
  assert.deepEqual(marked.metadata, {
    counterfoil_saga: 'saga_1',
    counterfoil_state: 'abandoned',
  });
  assert.deepEqual((await stripe.customers.update(customer.id, { metadata: '' })).metadata, {});

  for (let other = 0; other < 3; other += 1) await stripe.customers.create({ email });
  const seen = [];
  for await (const found of stripe.customers.list({ email, created: { gte: since }, limit: 1 })) {
    seen.push(found.id);
  }
  assert.equal(seen.length, 4);
  assert.equal(seen.at(-1), customer.id);
  const later = await stripe.customers.list({ email, created: { gt: now() + HOUR } });
  assert.deepEqual(later.data, []);
  await assert.rejects(stripe.customers.create({ email: 'nobody' }), { code: 'email_invalid' });
});

test('meters', async () => {
  const { meter, event_name } = await world({ event_time_window: 'hour' });
  assert.match(meter.id, /^mtr_test_/);
  assert.equal(meter.event_time_window, 'hour');
  const updated = await stripe.billing.meters.update(meter.id, { display_name: 'Other' });
  assert.equal(updated.display_name, 'Other');
  assert.equal((await stripe.billing.meters.deactivate(meter.id)).status, 'inactive');
  assert.equal((await stripe.billing.meters.reactivate(meter.id)).status, 'active');
  const listed = await stripe.billing.meters.list({ status: 'active', limit: 100 });
  assert.ok(listed.data.some((found) => found.event_name === event_name));
});

test('a meter event, and the same identifier again', async () => {
  const { event } = await world();
  const sent = await stripe.billing.meterEvents.create(event('a', '12.5'));
  assert.equal(sent.object, 'billing.meter_event');
  assert.equal(sent.payload.value, '12.5');
  assert.match(sent.lastResponse.requestId, /^req_/);
  await assert.rejects(stripe.billing.meterEvents.create(event('a', '12.5')), (error) => {
    assert.ok(error instanceof Stripe.errors.StripeInvalidRequestError);
    assert.equal(error.statusCode, 400);
    assert.equal(error.code, undefined);
    assert.match(error.message, /^An event already exists with identifier/);
    assert.equal(error.headers['stripe-should-retry'], 'false');
    return true;
  });
  await assert.rejects(
    stripe.billing.meterEvents.create({ ...event('b', '1'), subscription: 'sub_1' }),
    { code: 'parameter_unknown' },
  );
});

test('an idempotency key', async () => {
  const { event } = await world();
  const idempotencyKey = event('key', '').identifier;
  const time = now();
  const send = (value) =>
    stripe.billing.meterEvents.create(event('a', value, time), { idempotencyKey });
  const first = await send('1');
  const again = await send('1');
  assert.equal(first.lastResponse.headers['idempotent-replayed'], undefined);
  assert.equal(again.lastResponse.headers['idempotent-replayed'], 'true');
  await assert.rejects(send('2'), (error) => {
    assert.ok(error instanceof Stripe.errors.StripeIdempotencyError);
    assert.equal(error.rawType, 'idempotency_error');
    return true;
  });
});

test('summaries', async () => {
  const { customer, meter, event } = await world();
  for (let hour = 0; hour < 3; hour += 1) {
    await stripe.billing.meterEvents.create(event(hour, '0.1', thisHour - hour * HOUR - 1));
  }
  const range = {
    customer: customer.id,
    start_time: thisHour - 24 * HOUR,
    end_time: thisHour,
  };
  const total = await stripe.billing.meters.listEventSummaries(meter.id, range);
  assert.deepEqual(total.data.map((row) => row.aggregated_value), [0.3]);
  const starts = [];
  const hourly = { ...range, value_grouping_window: 'hour', limit: 1 };
  for await (const row of stripe.billing.meters.listEventSummaries(meter.id, hourly)) {
    starts.push(row.start_time);
  }
  assert.deepEqual(starts, [1, 2, 3].map((hour) => thisHour - hour * HOUR));
  for (const wrong of [
    { start_time: range.start_time + 1 },
    { start_time: range.start_time + 60, value_grouping_window: 'hour' },
  ]) {
    await assert.rejects(
      stripe.billing.meters.listEventSummaries(meter.id, { ...range, ...wrong }),
      { message: /start_time must be aligned/, statusCode: 400 },
    );
  }
});

test('an adjustment', async () => {
  const { event, event_name } = await world();
  await stripe.billing.meterEvents.create(event('a', '1'));
  const { identifier } = event('a', '1');
  const cancelled = await stripe.billing.meterEventAdjustments.create({
    event_name,
    type: 'cancel',
    cancel: { identifier },
  });
  assert.equal(cancelled.status, 'pending');
  await assert.rejects(
    stripe.v2.billing.meterEventAdjustments.create({
      event_name,
      type: 'cancel',
      cancel: { identifier: 'unknown' },
    }),
    { statusCode: 400 },
  );
});

test('version 2 and its stream', async () => {
  const { event } = await world();
  const as_v2 = (name) => ({ ...event(name, '2'), timestamp: new Date().toISOString() });
  const sent = await stripe.v2.billing.meterEvents.create(as_v2('a'));
  assert.equal(sent.object, 'v2.billing.meter_event');
  const session = await stripe.v2.billing.meterEventSession.create();
  const stream = client(session.authentication_token);
  await stream.v2.billing.meterEventStream.create({ events: [as_v2('b'), as_v2('c')] });
  await simulator('/_sim/clock', { advance_seconds: 16 * 60 });
  try {
    await assert.rejects(
      stream.v2.billing.meterEventStream.create({ events: [as_v2('d')] }),
      (error) => {
        assert.ok(error instanceof Stripe.errors.TemporarySessionExpiredError, error);
        return true;
      },
    );
  } finally {
    await simulator('/_sim/clock', { advance_seconds: -16 * 60 });
  }
});

test('a snapshot webhook', async () => {
  const hook = await receiver();
  try {
    const endpoint = await stripe.webhookEndpoints.create({
      url: hook.url,
      enabled_events: ['billing.meter.created'],
    });
    const { meter } = await world();
    const { body, signature } = await hook.received;
    const event = stripe.webhooks.constructEvent(body, signature, endpoint.secret);
    assert.equal(event.type, 'billing.meter.created');
    assert.equal(event.data.object.id, meter.id);
    assert.throws(() => stripe.webhooks.constructEvent(`${body} `, signature, endpoint.secret));
    assert.equal((await stripe.events.retrieve(event.id)).id, event.id);
    await stripe.webhookEndpoints.del(endpoint.id);
  } finally {
    hook.close();
  }
});

test('a thin webhook about a dropped event', async () => {
  const hook = await receiver();
  try {
    const destination = await stripe.v2.core.eventDestinations.create({
      name: 'thin',
      type: 'webhook_endpoint',
      event_payload: 'thin',
      enabled_events: ['v1.billing.meter.error_report_triggered'],
      webhook_endpoint: { url: hook.url },
      include: ['webhook_endpoint.signing_secret'],
    });
    const { customer, meter, event } = await world();
    const rule = { kind: 'async_rejection', path: 'meter_events', customer: customer.id };
    await simulator('/_sim/faults', { rules: [rule] });
    await stripe.billing.meterEvents.create(event('a', '1'));
    const { body, signature } = await hook.received;
    const secret = destination.webhook_endpoint.signing_secret;
    const thin = stripe.parseEventNotification(body, signature, secret);
    assert.equal(thin.type, 'v1.billing.meter.error_report_triggered');
    assert.equal(thin.related_object.id, meter.id);
    const full = await stripe.v2.core.events.retrieve(thin.id);
    const [error] = full.data.reason.error_types;
    assert.equal(error.code, 'meter_event_customer_not_found');
    assert.equal(error.sample_errors[0].request.identifier, event('a', '1').identifier);
  } finally {
    hook.close();
  }
});

// A metered price in cents.
const price = (meter) =>
  stripe.prices.create({
    currency: 'usd',
    unit_amount_decimal: '0.5',
    recurring: { interval: 'month', usage_type: 'metered', meter: meter.id },
    product_data: { name: 'Calls' },
  });

test('subscriptions are made, changed and cancelled', async () => {
  const { customer, meter } = await world();
  const [one, two, three] = [await price(meter), await price(meter), await price(meter)];
  const idempotencyKey = `${customer.id}-subscription`;
  const make = () =>
    stripe.subscriptions.create(
      {
        customer: customer.id,
        items: [{ price: one.id }, { price: two.id }],
        payment_behavior: 'error_if_incomplete',
        billing_mode: { type: 'flexible' },
        metadata: { counterfoil_saga: 'saga_1' },
      },
      { idempotencyKey },
    );
  const made = await make();
  assert.equal((await make()).id, made.id);
  const [first, second] = made.items.data;
  const changed = await stripe.subscriptions.update(made.id, {
    items: [{ id: first.id, deleted: true }, { price: three.id }],
    proration_behavior: 'create_prorations',
    metadata: { counterfoil_saga: 'saga_2' },
  });
  assert.deepEqual(changed.items.data.map((item) => item.price.id), [two.id, three.id]);
  assert.equal(changed.items.data[0].id, second.id);
  assert.equal(changed.metadata.counterfoil_saga, 'saga_2');
  const items = await stripe.subscriptionItems.list({ subscription: made.id });
  assert.deepEqual(items.data, changed.items.data);
  const ending = await stripe.subscriptions.update(made.id, { cancel_at_period_end: true });
  assert.equal(ending.cancel_at_period_end, true);
  const cancelled = await stripe.subscriptions.cancel(made.id, {
    invoice_now: true,
    prorate: false,
  });
  assert.equal(cancelled.status, 'canceled');
  const invoices = await stripe.invoices.list({ subscription: made.id });
  assert.equal(invoices.data[0].id, cancelled.latest_invoice);
  await assert.rejects(stripe.subscriptions.cancel(made.id), { code: 'resource_missing' });
  await assert.rejects(stripe.subscriptions.update(made.id, { cancel_at_period_end: true }), {
    message: /^A canceled subscription can only update/,
  });
  assert.equal((await stripe.subscriptions.retrieve(made.id)).status, 'canceled');

  for (let other = 0; other < 3; other += 1) {
    await stripe.subscriptions.create({ customer: customer.id, items: [{ price: one.id }] });
  }
  const statuses = [];
  const all = { customer: customer.id, status: 'all', limit: 2 };
  for await (const found of stripe.subscriptions.list(all)) statuses.push(found.status);
  assert.deepEqual(statuses, ['active', 'active', 'active', 'canceled']);
});

test('a call that fails after its effect is made once', async () => {
  const { customer, meter } = await world();
  const { id } = await price(meter);
  const make = (idempotencyKey) =>
    stripe.subscriptions.create(
      { customer: customer.id, items: [{ price: id }] },
      { idempotencyKey },
    );
  const rule = { kind: 'error_500_executed', call: 'POST /v1/subscriptions', customer: customer.id };
  await simulator('/_sim/faults', { rules: [rule] });
  for (let time = 0; time < 2; time += 1) {
    await assert.rejects(make(`${customer.id}-kept`), { statusCode: 500 });
  }
  const found = await stripe.subscriptions.list({ customer: customer.id, status: 'all' });
  assert.equal(found.data.length, 1);
});

test('a cycle: subscription, invoice, credit', async () => {
  const { customer, meter } = await world();
  const { id } = await price(meter);
  const subscription = await stripe.subscriptions.create({
    customer: customer.id,
    items: [{ price: id }],
  });
  assert.equal(subscription.status, 'active');
  const all = await stripe.subscriptions.list({ customer: customer.id, status: 'all' });
  assert.equal(all.data[0].id, subscription.id);
  const grant = await stripe.billing.creditGrants.create({
    customer: customer.id,
    amount: { type: 'monetary', monetary: { currency: 'usd', value: 500 } },
    applicability_config: { scope: { price_type: 'metered' } },
    category: 'promotional',
  });
  assert.equal(grant.amount.monetary.value, 500);
  assert.equal((await stripe.subscriptions.cancel(subscription.id)).status, 'canceled');
  assert.deepEqual((await stripe.invoices.list({ customer: customer.id })).data, []);
});
