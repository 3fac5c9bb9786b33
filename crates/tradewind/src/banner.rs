//! The text that `serve` prints when it is ready: addresses, access key, and a command line to try. The secret key is
//! printed only when it is created.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::assemble::StackedStore;
use crate::root_key::{self, RootCredentials};
use crate::settings::{ServedVolume, Settings};

/// The values to print.
#[derive(Debug)]
pub struct Banner<'a> {
    /// The settings in effect.
    pub settings: &'a Settings,
    /// The root key.
    pub root: &'a RootCredentials,
    /// The address of the S3 listener.
    pub endpoint: SocketAddr,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// The served stores.
    pub stores: &'a [StackedStore],
}

impl Banner<'_> {
    /// Prints the banner to stdout, and warns about secret files that other users can read.
    pub fn print(&self) -> io::Result<()> {
        for (file, mode) in self.settings.exposed_files() {
            tracing::warn!(
                file = %file.display(),
                mode = format_args!("{mode:o}"),
                "other users may be able to read a secret; run chmod 600 on the file"
            );
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(self.text().as_bytes())?;
        stdout.flush()
    }

    /// A line for each volume, if there are several.
    fn volumes(&self) -> String {
        let volumes = self.settings.served_volumes().unwrap_or_default();
        if volumes.len() < 2 {
            return String::new();
        }
        let line = |(index, volume): (usize, &ServedVolume<'_>)| {
            let default = if index == 0 { " (default)" } else { "" };
            format!("  volume      {} = {}{default}\n", volume.name, volume.stack_text())
        };
        volumes.iter().enumerate().map(line).collect()
    }

    fn text(&self) -> String {
        let scheme = if self.settings.scalars.server.tls_cert.value.is_some() { "https" } else { "http" };
        let mut text = format!(
            "tradewind {} is ready\n  endpoint    {scheme}://{}\n  admin       http://{}\n  access key  {}\n",
            env!("CARGO_PKG_VERSION"),
            self.endpoint,
            self.admin,
            self.root.id
        );
        let file = self.settings.data_directory().join(root_key::FILE_NAME);
        let file = quoted(&file.display().to_string());
        if self.root.is_new {
            let secret = self.root.secret.reveal();
            text += &format!("  secret key  {secret}  (printed only once; saved in {file})\n");
        }
        text += &self.volumes();
        for store in self.stores {
            let Some(plan) = store.served.plan() else { continue };
            match self.stores.len() {
                1 => text += &format!("  plan        {plan}\n"),
                _ => text += &format!("  plan        {}: {plan}\n", store.name),
            }
        }
        let credentials = match &self.settings.root_key {
            None => format!("export $(cat {file}) "),
            Some(key) if key.secret.source.kind() == "environment" => "export \
                AWS_ACCESS_KEY_ID=$TRADEWIND_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$TRADEWIND_SECRET_KEY "
                .to_owned(),
            Some(key) => {
                format!("export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY=... ", quoted(&key.id.value))
            }
        };
        let region = self.settings.scalars.server.region.value.as_deref().unwrap_or("us-east-1");
        let endpoint = format!("{scheme}://{}", reachable(self.endpoint));
        text += &format!(
            "try it:\n  {credentials}AWS_ENDPOINT_URL={endpoint} AWS_DEFAULT_REGION={region}\n  \
             aws s3 mb s3://first && echo hello | aws s3 cp - s3://first/hello.txt\n"
        );
        text
    }
}

/// An address that a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Quotes text for a shell if necessary.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Inputs, Secret};

    fn text(inputs: &Inputs, is_new: bool) -> String {
        let settings = Settings::read(inputs).unwrap();
        let root = RootCredentials { id: "TWID".into(), secret: Secret::new("hush-hush"), is_new };
        let endpoint = "0.0.0.0:9000".parse().unwrap();
        let admin = "127.0.0.1:9001".parse().unwrap();
        Banner { settings: &settings, root: &root, endpoint, admin, stores: &[] }.text()
    }

    #[test]
    fn the_secret_is_printed_once() {
        let first = text(&Inputs::default(), true);
        assert!(first.contains("hush-hush") && first.contains("export $(cat data/root-key) "), "{first}");
        assert!(first.contains("AWS_ENDPOINT_URL=http://127.0.0.1:9000 "), "{first}");
        assert!(!text(&Inputs::default(), false).contains("hush"));
    }

    #[test]
    fn example_matches_the_source_of_the_key() {
        let mut inputs = Inputs::default();
        inputs.environment.insert("TRADEWIND_ACCESS_KEY".into(), "root".into());
        inputs.environment.insert("TRADEWIND_SECRET_KEY".into(), "hush-hush".into());
        let printed = text(&inputs, false);
        assert!(printed.contains("=$TRADEWIND_SECRET_KEY ") && !printed.contains("hush"), "{printed}");
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("a/b-c.d"), "a/b-c.d");
        assert_eq!(quoted("it's mine"), r"'it'\''s mine'");
    }
}
