//! The kinds of accidents. A seed has one of them, so that a life stays short; the provider's
//! faults and the deaths of workers are part of all.

mod borders;
mod clocks;
pub mod credits;
mod customers;
mod readings;
mod restores;
mod subscriptions;
mod workers;

use crate::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Story {
    /// The provider's faults, usage that it drops or loses, and more than 35 days.
    Faults,
    /// Clocks that are wrong for a while.
    Clocks,
    /// The store is put back from a copy.
    Restores,
    /// Totals that the provider shows late, and few readings of them.
    Readings,
    /// Tenants are mapped to other customers.
    Customers,
    /// Two workers, one of which stalls.
    Workers,
    /// Credits are issued, used, voided and expire.
    Credits,
    /// Sagas create, change and cancel subscriptions, and the provider aggregates slowly.
    Subscriptions,
    /// Subscriptions change at the provider itself, at any second, and webhooks are lost and late.
    Borders,
}

impl Story {
    pub const ALL: [Self; 9] = [
        Self::Faults,
        Self::Clocks,
        Self::Restores,
        Self::Readings,
        Self::Customers,
        Self::Workers,
        Self::Credits,
        Self::Subscriptions,
        Self::Borders,
    ];

    /// Seeds are given stories in turn.
    pub fn of(seed: u64) -> Self {
        let place = seed % u64::try_from(Self::ALL.len()).unwrap();
        Self::ALL[usize::try_from(place).unwrap()]
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Clocks => "clocks",
            Self::Restores => "restores",
            Self::Readings => "readings",
            Self::Customers => "customers",
            Self::Workers => "workers",
            Self::Credits => "credits",
            Self::Subscriptions => "subscriptions",
            Self::Borders => "borders",
        }
    }

    /// Lives the whole life; an error says what was violated.
    pub fn live(self, world: &mut World<'_>) -> Result<(), String> {
        world.set_up();
        match self {
            Self::Faults => world.live_plainly(),
            Self::Clocks => clocks::live(world),
            Self::Restores => restores::live(world),
            Self::Readings => readings::live(world),
            Self::Customers => customers::live(world),
            Self::Workers => workers::live(world),
            Self::Credits => credits::live(world),
            Self::Subscriptions => subscriptions::live(world),
            Self::Borders => borders::live(world),
        }
    }
}
