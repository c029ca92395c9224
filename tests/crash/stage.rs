//! A store, a Stripe simulator, and the settings that lead a server there.

use super::server::{Launch, Place, Server};
use std::sync::{Arc, Mutex};
use stripe_sim::{Handle, Options, SimRequest, Simulator, Timestamp};

pub struct Stage {
    pub place: Place,
    pub handle: Handle,
    pub settings: Vec<(&'static str, String)>,
}

/// A simulator whose time is this machine's.
pub fn following() -> Simulator {
    Simulator::following(Timestamp::now, Options::default())
}

impl Stage {
    /// With these settings besides those of the provider.
    pub async fn set(place: Place, simulator: Simulator, more: &[(&'static str, &str)]) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = Handle::start(listen, Arc::new(Mutex::new(simulator))).await.unwrap();
        let mut settings = vec![
            ("COUNTERFOIL_PROVIDER_KIND", "stripe".to_owned()),
            ("COUNTERFOIL_STRIPE_API_BASE", handle.url()),
            ("COUNTERFOIL_STRIPE_API_KEY", "sk_test_crash".to_owned()),
            ("COUNTERFOIL_RECONCILE_PASSES", "false".to_owned()),
        ];
        settings.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        Self { place, handle, settings }
    }

    pub fn start(&self) -> Server {
        self.launch("").expect("it starts")
    }

    pub fn launch(&self, failpoints: &str) -> Result<Server, String> {
        let launch = Launch { failpoints, settings: &self.settings, ..Launch::default() };
        Server::launch(&self.place, &launch)
    }

    /// Creates an object at the provider; returns its id.
    pub fn ask(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let simulator = self.handle.simulator();
        let response = simulator.lock().unwrap().handle(&SimRequest::form(path, fields));
        assert_eq!(response.status, 200, "{path}: {}", response.json());
        response.json()["id"].as_str().unwrap().to_owned()
    }

    /// A price of a meter of this name.
    pub fn price(&self, meter: &str) -> String {
        let fields = [
            ("display_name", meter),
            ("event_name", meter),
            ("default_aggregation[formula]", "sum"),
        ];
        let meter = self.ask("/v1/billing/meters", &fields);
        let fields = [
            ("currency", "usd"),
            ("product", "prod_1"),
            ("unit_amount_decimal", "2"),
            ("recurring[interval]", "month"),
            ("recurring[usage_type]", "metered"),
            ("recurring[meter]", &meter),
        ];
        self.ask("/v1/prices", &fields)
    }
}
