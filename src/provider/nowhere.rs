//! Shadow mode without a destination: nothing is sent, but the real provider's totals can be read
//! and compared with ours. Nothing can be changed there either: there are no operations.

use super::{Answer, Inbound, Limits, Provider, PushFacts, Request, TotalsQuery, Unreadable};
use crate::rules::quantity::Quantity;
use crate::rules::submission::SubmitOutcome;
use async_trait::async_trait;
use std::sync::Arc;

pub struct Nowhere {
    beside: Arc<dyn Provider>,
}

impl Nowhere {
    pub fn beside(provider: Arc<dyn Provider>) -> Self {
        Self { beside: provider }
    }
}

#[async_trait]
impl Provider for Nowhere {
    fn name(&self) -> &'static str {
        self.beside.name()
    }

    fn limits(&self) -> Limits {
        Limits { sends: false, ..self.beside.limits() }
    }

    fn tells_time(&self) -> bool {
        self.beside.tells_time()
    }

    async fn ask_time(&self) {
        self.beside.ask_time().await;
    }

    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        self.beside.encode(facts)
    }

    async fn send_push(&self, _: &Request) -> Answer {
        let message = "shadow mode: nothing is sent".into();
        Answer { outcome: SubmitOutcome::Refused { message }, request_id: None }
    }

    fn inbound(&self) -> Option<&dyn Inbound> {
        self.beside.inbound()
    }

    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        self.beside.read_totals(query).await
    }
}
