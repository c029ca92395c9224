"""Stripe's own Python SDK against `counterfoil stripe-sim`: what the SDK makes of the answers is
what a program written for Stripe would see. Started by `cargo xtask stripe-sdk`, which says in the
environment where the simulator is."""

import datetime
import http.server
import itertools
import json
import os
import queue
import threading
import time
import unittest
import urllib.request

import stripe

URL = os.environ["STRIPE_SIM_URL"]
HOUR = 3600
NUMBERS = itertools.count(1)


def client(key):
    addresses = {"api": URL, "meter_events": URL}
    return stripe.StripeClient(key, base_addresses=addresses, max_network_retries=0)


STRIPE = client("sk_test_python")


def now():
    return int(time.time())


# Taken once, so that no test sees the hour change.
THIS_HOUR = now() - now() % HOUR


def simulator(path, body):
    """Tells the simulator itself something."""
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data=data)) as answer:
        return json.load(answer)


class World:
    """A customer and a meter of its own for each test."""

    def __init__(self):
        self.event_name = f"python_{now()}_{next(NUMBERS)}"
        self.customer = STRIPE.v1.customers.create(params={"name": "Ada"})
        self.meter = STRIPE.v1.billing.meters.create(
            params={
                "display_name": "Calls",
                "event_name": self.event_name,
                "default_aggregation": {"formula": "sum"},
            }
        )

    def event(self, identifier, value, timestamp=None):
        return {
            "event_name": self.event_name,
            "identifier": f"{self.event_name}-{identifier}",
            "timestamp": timestamp or now(),
            "payload": {"stripe_customer_id": self.customer.id, "value": value},
        }

    def send(self, identifier, value, timestamp=None, **options):
        event = self.event(identifier, value, timestamp)
        return STRIPE.v1.billing.meter_events.create(params=event, options=options)


class Receiver:
    """Takes webhooks; gives their bodies as they came, and their signatures."""

    def __enter__(self):
        received = self.received = queue.Queue()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.end_headers()
                received.put((body.decode(), self.headers["stripe-signature"]))

            def log_message(self, *arguments):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def next(self):
        return self.received.get(timeout=10)


class Sdk(unittest.TestCase):
    def test_a_key_is_needed(self):
        with self.assertRaises(stripe.AuthenticationError):
            client("pk_nothing").v1.customers.list()

    def test_customers(self):
        world = World()
        found = STRIPE.v1.customers.retrieve(world.customer.id)
        self.assertEqual(found.name, "Ada")
        listed = STRIPE.v1.customers.list(params={"limit": 1}).auto_paging_iter()
        ids = [customer.id for customer in itertools.islice(listed, 3)]
        self.assertEqual(len(set(ids)), len(ids))
        self.assertTrue(STRIPE.v1.customers.delete(world.customer.id).deleted)

    def test_customers_made_once_marked_and_listed_by_time(self):
        since = now()
        email = f"python_{since}@example.com"
        customers = STRIPE.v1.customers
        make = lambda name: customers.create(
            params={"name": name, "email": email, "metadata": {"counterfoil_saga": "saga_1"}},
            options={"idempotency_key": f"{email}-customer"},
        )
        customer = make("Ada")
        self.assertEqual(make("Ada").id, customer.id)
        with self.assertRaises(stripe.IdempotencyError):
            make("Bob")
        change = {"metadata": {"counterfoil_state": "abandoned", "counterfoil_saga": ""}}
        marked = customers.update(customer.id, params=change)
        self.assertEqual(marked.metadata.to_dict(), {"counterfoil_state": "abandoned"})
        customers.create(params={"email": email})
        asked = {"email": email, "created": {"gte": since}, "limit": 1}
        ids = [found.id for found in customers.list(params=asked).auto_paging_iter()]
        self.assertEqual((len(ids), ids[-1]), (2, customer.id))

    def test_subscriptions_made_changed_and_cancelled(self):
        world = World()
        recurring = {"interval": "month", "usage_type": "metered", "meter": world.meter.id}
        price = {
            "currency": "usd",
            "unit_amount_decimal": "0.5",
            "recurring": recurring,
            "product_data": {"name": "Calls"},
        }
        one, two = (STRIPE.v1.prices.create(params=price).id for _ in range(2))
        subscriptions = STRIPE.v1.subscriptions
        asked = {
            "customer": world.customer.id,
            "items": [{"price": one}],
            "payment_behavior": "error_if_incomplete",
            "metadata": {"counterfoil_saga": "saga_1"},
        }
        options = {"idempotency_key": f"{world.customer.id}-subscription"}
        made = subscriptions.create(params=asked, options=options)
        self.assertEqual(subscriptions.create(params=asked, options=options).id, made.id)
        item = made["items"].data[0].id
        change = {
            "items": [{"id": item, "deleted": True}, {"price": two}],
            "proration_behavior": "none",
        }
        changed = subscriptions.update(made.id, params=change)
        self.assertEqual([item.price.id for item in changed["items"].data], [two])
        ending = subscriptions.update(made.id, params={"cancel_at_period_end": True})
        self.assertTrue(ending.cancel_at_period_end)
        last = {"invoice_now": True, "prorate": False}
        cancelled = subscriptions.cancel(made.id, params=last)
        self.assertEqual(cancelled.status, "canceled")
        invoices = STRIPE.v1.invoices.list(params={"subscription": made.id}).data
        self.assertEqual([found.id for found in invoices], [cancelled.latest_invoice])
        with self.assertRaises(stripe.InvalidRequestError) as refused:
            subscriptions.cancel(made.id)
        self.assertEqual(refused.exception.code, "resource_missing")
        query = {"customer": world.customer.id, "status": "all", "limit": 1}
        listed = subscriptions.list(params=query).auto_paging_iter()
        self.assertEqual([found.status for found in listed], ["canceled"])

    def test_meters(self):
        world = World()
        self.assertTrue(world.meter.id.startswith("mtr_test_"))
        meters = STRIPE.v1.billing.meters
        self.assertEqual(meters.deactivate(world.meter.id).status, "inactive")
        with self.assertRaises(stripe.InvalidRequestError) as refused:
            world.send("a", "1")
        self.assertEqual(refused.exception.code, "archived_meter")
        self.assertEqual(meters.reactivate(world.meter.id).status, "active")

    def test_a_meter_event_and_the_same_identifier_again(self):
        world = World()
        sent = world.send("a", "12.5")
        self.assertEqual(sent.payload["value"], "12.5")
        with self.assertRaises(stripe.InvalidRequestError) as refused:
            world.send("a", "12.5")
        error = refused.exception
        self.assertEqual((error.http_status, error.code), (400, None))
        start = "An event already exists with identifier"
        self.assertTrue(str(error.user_message).startswith(start), error)
        self.assertEqual(error.headers["stripe-should-retry"], "false")

    def test_values_and_timestamps(self):
        world = World()
        for value, timestamp in [
            ("1e5", None),
            ("1234567890123456", None),
            ("1", now() - 36 * 24 * HOUR),
            ("1", now() + 600),
        ]:
            with self.assertRaises(stripe.InvalidRequestError):
                world.send(f"{value}-{timestamp}", value, timestamp)

    def test_an_idempotency_key(self):
        world = World()
        key, timestamp = f"{world.event_name}-key", now()
        first = world.send("a", "1", timestamp, idempotency_key=key)
        again = world.send("a", "1", timestamp, idempotency_key=key)
        self.assertNotIn("idempotent-replayed", first.last_response.headers)
        self.assertEqual(again.last_response.headers["idempotent-replayed"], "true")
        with self.assertRaises(stripe.IdempotencyError):
            world.send("a", "2", timestamp, idempotency_key=key)

    def test_summaries(self):
        world = World()
        for hour in range(3):
            world.send(hour, "0.1", THIS_HOUR - hour * HOUR - 1)
        summaries = STRIPE.v1.billing.meters.event_summaries
        asked = {
            "customer": world.customer.id,
            "start_time": THIS_HOUR - 24 * HOUR,
            "end_time": THIS_HOUR,
        }
        total = summaries.list(world.meter.id, params=asked)
        self.assertEqual([row.aggregated_value for row in total.data], [0.3])
        hourly = {**asked, "value_grouping_window": "hour", "limit": 2}
        rows = summaries.list(world.meter.id, params=hourly).auto_paging_iter()
        starts = [row.start_time for row in rows]
        self.assertEqual(starts, [THIS_HOUR - hour * HOUR for hour in (1, 2, 3)])
        with self.assertRaises(stripe.InvalidRequestError) as refused:
            summaries.list(world.meter.id, params={**asked, "end_time": THIS_HOUR + 1})
        self.assertEqual(refused.exception.param, "end_time")

    def test_an_adjustment(self):
        world = World()
        world.send("a", "1")
        identifier = world.event("a", "1")["identifier"]
        cancel = {
            "event_name": world.event_name,
            "type": "cancel",
            "cancel": {"identifier": identifier},
        }
        made = STRIPE.v1.billing.meter_event_adjustments.create(params=cancel)
        self.assertEqual(made.status, "pending")
        made = STRIPE.v2.billing.meter_event_adjustments.create(cancel)
        self.assertEqual(made.cancel.identifier, identifier)

    def test_version_2_and_its_stream(self):
        world = World()
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat()
        event = lambda name: {**world.event(name, "2"), "timestamp": stamp}
        sent = STRIPE.v2.billing.meter_events.create(event("a"))
        self.assertEqual(sent.event_name, world.event_name)
        session = STRIPE.v2.billing.meter_event_session.create()
        stream = client(session.authentication_token).v2.billing.meter_event_stream
        stream.create({"events": [event("b"), event("c")]})
        simulator("/_sim/clock", {"advance_seconds": 16 * 60})
        try:
            with self.assertRaises(stripe.TemporarySessionExpiredError):
                stream.create({"events": [event("d")]})
        finally:
            simulator("/_sim/clock", {"advance_seconds": -16 * 60})

    def test_a_snapshot_webhook(self):
        with Receiver() as receiver:
            endpoint = STRIPE.v1.webhook_endpoints.create(
                params={"url": receiver.url, "enabled_events": ["billing.meter.created"]}
            )
            world = World()
            body, signature = receiver.next()
            event = STRIPE.construct_event(body, signature, endpoint.secret)
            self.assertEqual(event.data.object.id, world.meter.id)
            with self.assertRaises(stripe.SignatureVerificationError):
                STRIPE.construct_event(body + " ", signature, endpoint.secret)
            STRIPE.v1.webhook_endpoints.delete(endpoint.id)

    def test_a_thin_webhook_about_a_dropped_event(self):
        with Receiver() as receiver:
            destination = STRIPE.v2.core.event_destinations.create(
                {
                    "name": "thin",
                    "type": "webhook_endpoint",
                    "event_payload": "thin",
                    "enabled_events": ["v1.billing.meter.error_report_triggered"],
                    "webhook_endpoint": {"url": receiver.url},
                    "include": ["webhook_endpoint.signing_secret"],
                }
            )
            world = World()
            rule = {"kind": "async_rejection", "customer": world.customer.id}
            simulator("/_sim/faults", {"rules": [rule]})
            world.send("a", "1")
            body, signature = receiver.next()
            secret = destination.webhook_endpoint.signing_secret
            thin = STRIPE.parse_event_notification(body, signature, secret)
            self.assertEqual(thin.related_object.id, world.meter.id)
            full = STRIPE.v2.core.events.retrieve(thin.id)
            sample = full.data.reason.error_types[0].sample_errors[0]
            self.assertEqual(sample.request.identifier, world.event("a", "1")["identifier"])


if __name__ == "__main__":
    unittest.main()
