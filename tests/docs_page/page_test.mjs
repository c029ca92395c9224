// The page at /docs in a real browser: every operation of /openapi.json can be read, filled in and
// sent, and its curl text works in a shell. Started by `cargo xtask docs-page`, which says in the
// environment where the server, its key and Playwright are.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';

const url = process.env.DOCS_URL;
const key = process.env.DOCS_KEY;
const { chromium } = createRequire(`${process.env.DOCS_FOLDER}/`)('playwright-core');

let browser;
let page;
let operations;
let description;
const complaints = [];

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.DOCS_CHROMIUM,
    args: [
      '--no-sandbox',
      '--disable-quic',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-dev-shm-usage',
      '--disable-gpu',
      '--no-first-run',
    ],
  });
  page = await browser.newPage({ reducedMotion: 'reduce' });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    // An answer of 400 and above is an error of the console too, and is expected here.
    const expected = message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && !expected) complaints.push(message.text());
  });
  description = await (await fetch(`${url}/openapi.json`)).json();
  operations = Object.entries(description.paths).flatMap(([path, verbs]) =>
    Object.entries(verbs).map(([verb, operation]) => ({ verb, path, operation })),
  );
  await page.goto(`${url}/docs`);
  await page.waitForSelector('details.operation');
  await page.fill('#key', key);
});

after(async () => {
  await browser?.close();
});

const resolve = (schema) =>
  schema.$ref
    ? resolve(schema.$ref.slice(2).split('/').reduce((at, part) => at[part], description))
    : schema;

// Opens an operation as a person does, and returns what can be found inside.
async function open({ operation }) {
  const details = page.locator(`details.operation#${operation.operationId}`);
  assert.equal(await details.count(), 1, `${operation.operationId} is on the page once`);
  if (!(await details.evaluate((element) => element.open))) {
    await details.locator('> summary').click();
  }
  await details.locator('.inside').waitFor();
  return details;
}

// A value that fits: the pattern of a slug, a day, or a plain name.
function valueOf({ name, schema }) {
  const found = resolve(schema);
  if (found.enum) return found.enum[0];
  if (found.anyOf?.some((option) => option.format === 'date')) {
    return name === 'to' ? '2026-11-02' : '2026-11-01';
  }
  if (found.format === 'date-time') return '2026-11-01T00:00:00Z';
  if ([].concat(found.type).includes('integer')) return String(found.minimum || 1);
  if ([].concat(found.type).includes('boolean')) return 'false';
  return 'api_calls';
}

async function fill(details, operation) {
  for (const parameter of operation.parameters || []) {
    const input = details.locator(`[name="${parameter.name}"]`);
    assert.equal(await input.count(), 1, `an input for ${parameter.name}`);
    const isChoice = await input.evaluate((element) => element.tagName === 'SELECT');
    const wanted = valueOf(parameter);
    if (isChoice) await input.selectOption(wanted);
    else if (parameter.in === 'path' || parameter.required) await input.fill(wanted);
    else if (parameter.in === 'header') await input.fill(`key-${operation.operationId}`);
  }
}

// Presses Send; returns the request that left the browser and the status that the page shows.
async function send(details) {
  const leaves = page.waitForRequest(() => true);
  await details.locator('button.send').click();
  const request = await leaves;
  const shown = details.locator('.answer > span');
  await shown.waitFor();
  return { request, status: Number((await shown.textContent()).split(' ')[0]) };
}

// Runs the shown curl text in a shell, and returns the status of the answer.
function runCurl(text) {
  const silent = text.replace(/^curl /, "curl -s -o /dev/null -w '%{http_code}' ");
  const environment = { ...process.env, COUNTERFOIL_KEY: key };
  return Number(execFileSync('sh', ['-c', silent], { env: environment, encoding: 'utf8' }));
}

test('operations have unique ids', () => {
  const ids = operations.map(({ operation }) => operation.operationId);
  assert.deepEqual(ids, [...new Set(ids)]);
  assert.ok(ids.length > 60, `${ids.length} operations`);
});

test('groups are in the order of a first hour, none at the end by accident', async () => {
  const groups = await page.locator('.group-title').allTextContents();
  assert.deepEqual(groups.slice(0, 4), ['events', 'usage', 'meters', 'tenants']);
  assert.equal(groups.at(-1), 'operation');
  const listed = await page.locator('#list h2').allTextContents();
  assert.deepEqual(listed, groups);
});

test('every operation can be read', async () => {
  for (const entry of operations) {
    const { operation } = entry;
    const details = await open(entry);
    const name = operation.operationId;
    const text = await details.textContent();
    assert.ok(!text.includes('[object '), `${name} shows an object in place of its elements`);
    const inputs = await details.locator('label input, label select, label textarea').count();
    const expected = (operation.parameters || []).length + (operation.requestBody ? 2 : 0);
    assert.equal(inputs, expected, `${name} has its inputs`);
    const media = operation.requestBody?.content['application/json'];
    const fields = await details.locator('details.schemas .field > code').allTextContents();
    for (const field of Object.keys((media && resolve(media.schema).properties) || {})) {
      assert.ok(fields.includes(field), `${name} shows the field ${field} of its body`);
    }
  }
});

test('every operation can be sent, by the page and by its curl text', async () => {
  for (const entry of operations) {
    const { operation, verb, path } = entry;
    const name = `${verb} ${path}`;
    const details = await open(entry);
    await fill(details, operation);
    const curl = await details.locator('pre.curl').textContent();
    const { request, status } = await send(details);
    assert.equal(request.method(), verb.toUpperCase(), name);
    const sentTo = new URL(request.url());
    assert.ok(!sentTo.pathname.includes('%7B'), `${name} leaves no placeholder`);
    for (const parameter of (operation.parameters || []).filter((p) => p.in === 'header')) {
      assert.ok(request.headers()[parameter.name], `${name} sends the header ${parameter.name}`);
      assert.ok(!sentTo.searchParams.has(parameter.name), `${name}: no header in the query`);
      assert.ok(curl.includes(`-H '${parameter.name}: `), `${name}: curl has ${parameter.name}`);
    }
    const documented = Object.keys(operation.responses).map(Number);
    assert.ok(documented.includes(status), `${name} answers ${status}, of ${documented}`);
    const again = runCurl(curl);
    assert.ok(documented.includes(again), `${name}: curl gets ${again}, of ${documented}`);
  }
});

test('the example event is accepted today, in each way of writing it', async () => {
  const entry = operations.find(({ operation }) => operation.operationId === 'post_events');
  const meter = await fetch(`${url}/v1/meters/api_calls`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: '{"aggregation":"sum","dimensions":["region"]}',
  });
  assert.ok(meter.ok || meter.status === 409, `the meter is declared: ${meter.status}`);
  const details = await open(entry);
  const kinds = await details.locator('[name="content-type"] option').allTextContents();
  assert.equal(kinds[0], 'application/json', 'plain JSON is offered first');
  for (const kind of ['application/json', 'application/x-ndjson', 'application/cloudevents+json']) {
    await details.locator('[name="content-type"]').selectOption(kind);
    const { status } = await send(details);
    const answer = await details.locator('.answer pre').textContent();
    assert.equal(status, 200, `${kind}: ${answer}`);
    const { rejected, quarantined, conflicts } = JSON.parse(answer);
    assert.deepEqual([rejected, quarantined, conflicts], [0, 0, 0], `${kind}: ${answer}`);
  }
});

test('the filter narrows the page and the list beside it', async () => {
  const count = () => page.locator('details.operation:visible').count();
  const listed = () => page.locator('#list a.item:visible').count();
  await page.fill('#filter', 'entitlement');
  assert.ok((await count()) > 0 && (await count()) < operations.length);
  assert.equal(await listed(), await count());
  await page.fill('#filter', '');
  assert.equal(await count(), operations.length);
  assert.equal(await listed(), operations.length);
});

test('the page reports no error of its own', () => {
  assert.deepEqual(complaints, []);
});
