//! The list of agents that a balancer uses: a text file with a host, the address of its agent and the fingerprint of the
//! agent's key in each line.

use std::collections::HashSet;

use super::key::Fingerprint;

/// Maximum number of agents.
const MAX_AGENTS: usize = 4096;

/// An agent in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEntry {
    /// Name of its host, as OSDs report it.
    pub hostname: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// The fingerprint of its key.
    pub fingerprint: Fingerprint,
}

/// Parses the list. Empty lines and those that begin with `#` are ignored. The error names the line.
pub fn parse_agents(text: &str) -> Result<Vec<AgentEntry>, String> {
    let mut hosts = HashSet::new();
    let mut agents = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let agent = parse_line(line).map_err(|e| format!("line {}: {e}", index + 1))?;
        if !hosts.insert(agent.hostname.clone()) {
            return Err(format!("line {}: the host {} has an agent already", index + 1, agent.hostname));
        }
        if agents.len() == MAX_AGENTS {
            return Err(format!("line {}: more than {MAX_AGENTS} agents", index + 1));
        }
        agents.push(agent);
    }
    if agents.is_empty() {
        return Err("no agents: expected lines of HOST ADDRESS:PORT FINGERPRINT".to_owned());
    }
    Ok(agents)
}

fn parse_line(line: &str) -> Result<AgentEntry, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [hostname, address, fingerprint] = fields[..] else {
        return Err(format!("expected HOST ADDRESS:PORT FINGERPRINT, not {line:?}"));
    };
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none_or(|port| port == 0) {
        return Err(format!("the address {address:?} has no port"));
    }
    let fingerprint = fingerprint.parse().map_err(|e| format!("the fingerprint {e}"))?;
    Ok(AgentEntry { hostname: hostname.to_owned(), address: address.to_owned(), fingerprint })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Key;

    #[test]
    fn list_has_an_agent_in_each_line() {
        let fingerprint = Key::generate().fingerprint();
        let text =
            format!("# agents\n\nnode-a 10.0.0.7:9191 {fingerprint}\n  node-b [::1]:9191  {fingerprint}\n");
        let agents = parse_agents(&text).unwrap();
        let expected = |hostname: &str, address: &str| AgentEntry {
            hostname: hostname.to_owned(),
            address: address.to_owned(),
            fingerprint,
        };
        assert_eq!(agents, [expected("node-a", "10.0.0.7:9191"), expected("node-b", "[::1]:9191")]);
    }

    #[test]
    fn malformed_line_is_named() {
        let fingerprint = Key::generate().fingerprint();
        for (text, expected) in [
            ("".to_owned(), "no agents"),
            ("a 10.0.0.7:9191".to_owned(), "line 1: expected HOST ADDRESS:PORT FINGERPRINT"),
            (format!("a 10.0.0.7 {fingerprint}"), "line 1: the address \"10.0.0.7\" has no port"),
            (format!("a 10.0.0.7:0 {fingerprint}"), "has no port"),
            ("#\na b:1 sha256:12".to_owned(), "line 2: the fingerprint must have 64 hexadecimal digits"),
            (format!("a b:1 {fingerprint}\na c:1 {fingerprint}"), "line 2: the host a has an agent already"),
        ] {
            let error = parse_agents(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
