//! The calls of the admin API about classes of data: the policies in force, a change of them, and a reload of the
//! settings file.

use http::StatusCode;
use serde_json::{Value as Json, json};
use tradewind_core::Class;
use tradewind_gateway::admin::api::AdminResponse;

use super::admin_calls::{AdminCalls, Failure};
use super::changeable_settings::{ReloadError, Reloaded};

/// The maximum length of a message. The problems of a change repeat its values, which a caller chooses.
const MAX_MESSAGE_CHARS: usize = 1_000;

impl AdminCalls {
    /// All classes, with the policies in force.
    pub(super) fn classes(&self) -> AdminResponse {
        AdminResponse::document(&self.changeable.classes())
    }

    /// Overrides policies of a class until the next reload or restart.
    pub(super) fn change_class(&self, number: &str, body: &[u8]) -> Result<AdminResponse, Failure> {
        let class = number.parse().ok().and_then(|value| Class::new(value).ok());
        let class = class.filter(|class| class.value().to_string() == number).ok_or_else(|| {
            let message = format!(
                "the path does not name a class; it is /v1/classes/N, with N from 0 to {}",
                Class::MAX
            );
            Failure::not_found(message)
        })?;
        let entry = self.changeable.change(class, body).map_err(|why| Failure::invalid(shortened(&why)))?;
        Ok(AdminResponse::document(&entry))
    }

    /// Reads the policies and rules of the settings file again.
    pub(super) async fn reload(&self, body: &[u8]) -> Result<AdminResponse, Failure> {
        let is_empty = body.is_empty()
            || matches!(serde_json::from_slice(body), Ok(Json::Object(fields)) if fields.is_empty());
        if !is_empty {
            return Err(Failure::invalid(
                "the body must be empty or {}: a reload reads the whole settings file",
            ));
        }
        // A file that cannot be read, as of a file server that is away, does not delay a shutdown.
        let reloaded = tokio::select! {
            reloaded = self.changeable.reload() => reloaded?,
            () = self.stop.cancelled() => return Err(shutting_down()),
        };
        let Reloaded { classes, rules, ended_overrides, is_restart_needed } = reloaded;
        let numbers = |classes: Vec<Class>| classes.into_iter().map(Class::value).collect::<Vec<u8>>();
        Ok(AdminResponse::document(&json!({
            "classes": numbers(classes),
            "class_rules": rules,
            "ended_overrides": numbers(ended_overrides),
            "restart_needed": is_restart_needed,
        })))
    }
}

impl From<ReloadError> for Failure {
    fn from(error: ReloadError) -> Self {
        let (status, code) = match error {
            ReloadError::NoFile => (StatusCode::CONFLICT, "NoSettingsFile"),
            ReloadError::Rejected(_) => (StatusCode::BAD_REQUEST, "InvalidSettings"),
            ReloadError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        Self { status, code, message: error.to_string() }
    }
}

fn shutting_down() -> Failure {
    let message = "the server is shutting down; the next start reads the settings file".to_owned();
    Failure { status: StatusCode::SERVICE_UNAVAILABLE, code: "Unavailable", message }
}

/// A message of bounded length.
fn shortened(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{} ...", &message[..end]),
        None => message.to_owned(),
    }
}
