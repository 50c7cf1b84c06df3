// SPDX-License-Identifier: Apache-2.0

use portolan_health::{Administrative, DynamicWeight, Outcome, Word};
use portolan_model::check::{AgentProbe, Probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{answering, check, refusing, run, serve, short, silent, slow};

fn agent(send: Option<&str>) -> Probe {
    let send = send.map(|text| text.as_bytes().to_vec());
    Probe::Agent(AgentProbe { send })
}

#[tokio::test]
async fn one_line_is_read() {
    let server = serve(|mut stream| async move {
        let mut name = [0; 4];
        stream.read_exact(&mut name).await?;
        assert_eq!(&name, b"web\n");
        stream.write_all(b"drain 40%\nup 100%\n").await?;
        // The line ends the probe, not the connection.
        stream.read(&mut name).await.map(|_| ())
    })
    .await;
    let expected = Word {
        weight: Some(DynamicWeight::Percent(40)),
        administrative: Some(Administrative::Drain),
        ..Word::default()
    };
    assert_eq!(
        run(&check(agent(Some("web\n"))), server).await,
        Outcome::Word(expected)
    );
}

#[tokio::test]
async fn no_answer_is_no_news() {
    let no_news = Outcome::Word(Word::default());
    assert_eq!(run(&check(agent(None)), refusing().await).await, no_news);
    assert_eq!(run(&short(agent(None)), silent().await).await, no_news);
    assert_eq!(run(&short(agent(None)), slow("down").await).await, no_news);
    let endless = answering(vec![b'x'; 100_000]).await;
    assert_eq!(run(&check(agent(Some("?"))), endless).await, no_news);
}
