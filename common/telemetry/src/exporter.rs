// SPDX-License-Identifier: Apache-2.0

//! The one exporter of a program.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use portolan_tls::{ChannelError, FileError, Rotating, secure_channel};
use rustls::ClientConfig;
use tonic::transport::{Endpoint, Uri};

use crate::{Change, OtlpArgs, Span};

/// The files of TLS, which may change.
pub type Credentials = Rotating<ClientConfig>;

/// Spans that wait to be sent, at most: more are dropped, so that a collector that is away costs nothing else.
const QUEUE: usize = 8_192;
/// Time between two messages to the collector.
const DELAY: Duration = Duration::from_secs(1);
/// Time limit of a message to the collector, and of the last one.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) static SPANS: OnceLock<Spans> = OnceLock::new();

/// The exporter cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// Scheme and files contradict each other.
    #[error("--otlp-endpoint {0}: https:// needs --otlp-ca, and http:// excludes it")]
    Scheme(String),
    /// The files of TLS cannot be used.
    #[error("--otlp-ca, --otlp-cert, --otlp-key: {0}")]
    Files(#[from] FileError),
    /// The endpoint cannot be one of TLS.
    #[error("--otlp-endpoint {0}")]
    Channel(#[from] ChannelError),
    /// The endpoint cannot be used.
    #[error("--otlp-endpoint {endpoint}: {source}")]
    Build {
        /// The endpoint.
        endpoint: String,
        /// The reason.
        source: ExporterBuildError,
    },
}

/// A program, as its spans name it.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// `service.name`: `portolan-controller` or `portolan-agent`.
    pub name: &'static str,
    /// `service.version`.
    pub version: &'static str,
    /// `service.instance.id`: name of the host, the node or the pod.
    pub instance: &'a str,
}

/// Takes the spans of a program.
#[derive(Debug)]
pub struct Spans {
    pub(crate) processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    sample: f64,
    instance: String,
}

/// Starts to export the spans of this program, if the flags name a collector. Must be called within tokio's runtime,
/// once; later calls have no effect. Blocks while files are read.
///
/// # Returns
/// The files of TLS, to be followed: changes take effect with the next connection.
///
/// # Errors
/// If the exporter cannot be made. A collector that is away is no error.
pub fn start(args: &OtlpArgs, program: Program<'_>) -> Result<Option<Credentials>, OtlpError> {
    let Some(endpoint) = &args.otlp_endpoint else {
        return Ok(None);
    };
    if SPANS.get().is_some() {
        return Ok(None);
    }
    let (spans, credentials) = Spans::new(args, endpoint, program)?;
    if SPANS.set(spans).is_ok() {
        tracing::info!(endpoint, sample = args.otlp_sample, "spans are exported");
    }
    Ok(credentials)
}

/// Sends what waits, for three seconds at most. Blocks.
pub fn stop() {
    if let Some(spans) = SPANS.get()
        && let Err(error) = spans.processor.shutdown_with_timeout(TIMEOUT)
    {
        tracing::warn!(%error, "the last spans could not be sent");
    }
}

/// The client of the collector, which connects when it has something to send.
fn exporter(
    args: &OtlpArgs,
    endpoint: &str,
) -> Result<(SpanExporter, Option<Credentials>), OtlpError> {
    args.validate()?;
    let scheme = |_| OtlpError::Scheme(endpoint.to_owned());
    let uri: Uri = endpoint.parse().map_err(scheme)?;
    let builder = SpanExporter::builder().with_tonic().with_timeout(TIMEOUT);
    let (builder, credentials) = match args.client_files() {
        None => (builder.with_endpoint(endpoint), None),
        Some(files) => {
            let credentials = files.open("otlp")?;
            let settings = |endpoint: Endpoint| endpoint.connect_timeout(TIMEOUT);
            let channel = secure_channel(&uri, credentials.subscribe(), settings)?;
            (builder.with_channel(channel), Some(credentials))
        }
    };
    let exporter = builder.build().map_err(|source| OtlpError::Build {
        endpoint: endpoint.to_owned(),
        source,
    })?;
    Ok((exporter, credentials))
}

impl Spans {
    pub(crate) fn new(
        args: &OtlpArgs,
        endpoint: &str,
        program: Program<'_>,
    ) -> Result<(Self, Option<Credentials>), OtlpError> {
        let (exporter, credentials) = exporter(args, endpoint)?;
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_scheduled_delay(DELAY)
            .build();
        let mut processor = BatchSpanProcessor::new(exporter, config);
        let resource = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", program.name),
            KeyValue::new("service.version", program.version),
            KeyValue::new("service.instance.id", program.instance.to_owned()),
        ]);
        processor.set_resource(&resource.build());
        let spans = Self {
            processor,
            scope: InstrumentationScope::builder("portolan").build(),
            sample: args.otlp_sample,
            instance: program.instance.to_owned(),
        };
        Ok((spans, credentials))
    }

    /// The program's own name among others of its kind: an agent's node.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns `true` if the spans of a change are exported.
    #[must_use]
    pub fn wants(&self, change: Change) -> bool {
        change.epoch != 0 && change.is_sampled(self.sample)
    }

    /// Exports a step of a change, if the change is wanted.
    pub fn export(&self, change: Change, span: Span) {
        if self.wants(change) {
            self.processor.on_end(self.data(change, span));
        }
    }

    fn data(&self, change: Change, span: Span) -> SpanData {
        let parent = span.parent.as_ref();
        let context = SpanContext::new(
            change.trace_id(),
            change.span_id(span.step, &span.node),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        let mut attributes = span.attributes;
        // Numbers of 64 bits without a sign do not fit an attribute.
        attributes.push(KeyValue::new(
            "portolan.epoch",
            format!("{:016x}", change.epoch),
        ));
        attributes.push(KeyValue::new(
            "portolan.revision",
            i64::try_from(change.revision).unwrap_or(i64::MAX),
        ));
        if !span.node.is_empty() {
            attributes.push(KeyValue::new("portolan.node", span.node));
        }
        SpanData {
            span_context: context,
            parent_span_id: parent
                .map_or(SpanId::INVALID, |(step, node)| change.span_id(step, node)),
            parent_span_is_remote: false,
            span_kind: span.kind,
            name: span.step.into(),
            start_time: span.start,
            end_time: span.end,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: span.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        }
    }
}
