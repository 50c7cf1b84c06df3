// SPDX-License-Identifier: Apache-2.0

//! Tests of streams whose tokens are reviewed.

use std::sync::Arc;
use std::time::Duration;

use portolan_auth::testing::{Signer, claims, verifier};
use portolan_proto::v1::agent_message::Message;
use tonic::{Code, Status};

use super::secure::Secure;
use super::support::{Client, hello, patiently, put};
use super::tls::channel;
use portolan_auth::{Authentication, Due, RefusalReason, Reviews, Verdict};
use portolan_listener::Limits;

const HOUR: Duration = Duration::from_secs(3_600);

/// A server that accepts tokens, and its queue of reviews.
struct World {
    secure: Secure,
    signer: Signer,
    reviews: Option<Arc<Reviews>>,
}

impl World {
    async fn start(reviews: Option<Arc<Reviews>>) -> Self {
        let signer = Signer::elliptic("1");
        let mut verifier = verifier("", &[&signer]);
        if let Some(reviews) = &reviews {
            verifier = verifier.reviewed(Arc::clone(reviews));
        }
        let authentication = Authentication::Required(Some(Arc::new(verifier)));
        Self {
            secure: Secure::with(authentication, Limits::default(), HOUR).await,
            signer,
            reviews,
        }
    }

    async fn reviewed() -> Self {
        Self::start(Some(Reviews::new(HOUR))).await
    }

    /// A token of a pod on a node.
    fn token(&self, node: &str, pod: &str) -> String {
        let mut claims = claims();
        claims["kubernetes.io"]["node"]["name"] = node.into();
        claims["kubernetes.io"]["pod"]["name"] = pod.into();
        self.signer.sign(&claims)
    }

    /// Connects an agent that has a token and no certificate.
    async fn connect(&self, node: &str, token: &str) -> Result<Client, Status> {
        let channel = channel(self.secure.server.address, self.secure.config(None)).await?;
        Client::begin(channel, Message::Hello(hello(node)), Some(token)).await
    }

    async fn next(&self) -> Due {
        patiently(self.reviews.as_ref().unwrap().next()).await
    }

    fn report(&self, due: &Due, verdict: Verdict) {
        self.reviews.as_ref().unwrap().report(due, verdict);
    }
}

fn assert_revoked(status: &Status) {
    assert_eq!(status.code(), Code::Unauthenticated);
    let message = "token: the API server does not accept it any more";
    assert_eq!(status.message(), message);
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked_and_no_other_does() {
    let mut world = World::reviewed().await;
    let tokens = [world.token("a", "agent-1"), world.token("b", "agent-2")];
    let mut revoked = world.connect("a", &tokens[0]).await.unwrap();
    revoked.batch().await;
    let due = world.next().await;
    assert_eq!((due.node(), &*due.token()), ("a", tokens[0].as_str()));
    let mut good = world.connect("b", &tokens[1]).await.unwrap();
    good.batch().await;
    world.report(&world.next().await, Verdict::Good);

    world.report(&due, Verdict::Revoked);
    assert_revoked(&revoked.next().await.unwrap_err());
    assert_eq!(world.secure.refused(RefusalReason::Revoked), 1);
    // The revoked token gets no new stream; the node's new pod does.
    assert_revoked(&world.connect("a", &tokens[0]).await.err().unwrap());
    assert_eq!(world.secure.refused(RefusalReason::Revoked), 2);
    let replacement = world.token("a", "agent-3");
    let mut replacement = world.connect("a", &replacement).await.unwrap();
    replacement.batch().await;
    world.secure.server.publisher.publish(&put(&["y"]));
    for client in [&mut good, &mut replacement] {
        assert_eq!(client.batch().await.put, ["y"]);
    }
}

#[tokio::test]
async fn a_stream_goes_on_without_an_answer_to_its_review() {
    let mut world = World::reviewed().await;
    let token = world.token("a", "agent-1");
    let mut client = world.connect("a", &token).await.unwrap();
    client.batch().await;
    world.report(&world.next().await, Verdict::Unknown);
    world.secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(client.batch().await.put, ["y"]);
}

/// A certificate takes precedence over a token, which is then not examined.
#[tokio::test]
async fn a_stream_with_a_certificate_is_not_reviewed() {
    let world = World::reviewed().await;
    let token = world.token("a", "agent-1");
    let config = world.secure.config(Some(&world.secure.agent("a")));
    let channel = channel(world.secure.server.address, config).await.unwrap();
    let begin = Client::begin(channel, Message::Hello(hello("a")), Some(&token));
    let mut certified = begin.await.unwrap();
    certified.batch().await;
    // The first review due is of a later stream.
    let other = world.token("b", "agent-2");
    let _other = world.connect("b", &other).await.unwrap();
    let due = world.next().await;
    assert_eq!((due.node(), &*due.token()), ("b", other.as_str()));
}

#[tokio::test]
async fn without_reviews_tokens_are_taken_all_the_same() {
    let mut world = World::start(None).await;
    let token = world.token("a", "agent-1");
    let mut client = world.connect("a", &token).await.unwrap();
    client.batch().await;
    world.secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(client.batch().await.put, ["y"]);
}
