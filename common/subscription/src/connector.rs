//! Connections to controllers for what goes beside the table.

use std::hash::{BuildHasher as _, RandomState};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Uri};

use crate::connect::{connect, root_cause};
use crate::{Resolver, Security, Target};

/// Knows the controllers, and how to speak to them.
#[derive(Debug)]
pub struct Connector {
    endpoints: Vec<Uri>,
    security: Security,
    resolver: Resolver,
}

impl Connector {
    /// One that has not tried anything.
    #[must_use]
    pub fn new(endpoints: Vec<Uri>, security: Security) -> Self {
        Self {
            endpoints,
            security,
            resolver: Resolver::default(),
        }
    }

    /// All controllers, beginning with any of them: agents spread.
    pub async fn targets(&mut self) -> Vec<Target> {
        let mut targets = self.resolver.resolve(&self.endpoints).await;
        let random = RandomState::new();
        targets.sort_by_cached_key(|target| random.hash_one(target.address));
        targets
    }

    /// A connection to a controller, and what goes with requests.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub async fn connect(
        &self,
        target: &Target,
    ) -> Result<(Channel, Option<MetadataValue<Ascii>>), String> {
        let channel = connect(target, &self.security).await;
        let channel = channel.map_err(|error| root_cause(&error))?;
        let authorization = self.security.authorization().await;
        let authorization = authorization.map_err(|error| error.to_string())?;
        Ok((channel, authorization))
    }
}
