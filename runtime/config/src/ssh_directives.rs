//! What an unattended connection does with each directive of `man ssh_config`.
//!
//! A user's configuration is for people who log in. Nodes are started by a program that answers no
//! question, and whose standard input and output belong to the node.

use SshTreatment::{ClearedBy, Harmless, Honoured, Overridden, Preset};

/// What an unattended connection does with a directive of the user's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SshTreatment {
    /// The connection uses this value in any case.
    Overridden(&'static str),
    /// The value of another directive makes this one ineffective.
    ClearedBy(&'static str),
    /// The connection has a value of its own, which `ssh.options` of the grid's config can replace.
    Preset,
    /// The directive applies as in any other connection.
    Honoured,
    /// The directive has no effect on the connection.
    Harmless,
}

/// A directive of ssh's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SshDirective {
    /// Name as `man ssh_config` spells it.
    pub name: &'static str,
    /// What an unattended connection does with it.
    pub treatment: SshTreatment,
    /// First version of OpenSSH that knows it, if later than 7.6: earlier ones refuse it.
    pub since: Option<(u32, u32)>,
    /// Reason for the treatment.
    pub reason: &'static str,
}

const fn of(name: &'static str, treatment: SshTreatment, reason: &'static str) -> SshDirective {
    SshDirective { name, treatment, since: None, reason }
}

const fn since(
    version: (u32, u32),
    name: &'static str,
    treatment: SshTreatment,
    reason: &'static str,
) -> SshDirective {
    SshDirective { name, treatment, since: Some(version), reason }
}

const HOST: &str = "It says how the host is reached.";
const IDENTITY: &str = "It says how the user is authenticated, without a question.";
const KEYS: &str = "It says which hosts are trusted.";
const CIPHER: &str = "It chooses algorithms.";
const FORWARDS: &str = "No forward is opened, so that none can fail or take a port.";
const UNUSED: &str = "It concerns forwards, which are not opened.";
const PASSWORDS: &str = "Passwords are never asked for.";
const SYNTAX: &str = "It structures the configuration.";

/// All directives, in alphabetical order.
pub const SSH_DIRECTIVES: &[SshDirective] = &[
    of("AddKeysToAgent", Overridden("no"), "Adding a key may ask for a confirmation."),
    of("AddressFamily", Honoured, HOST),
    of("BatchMode", Overridden("yes"), "No user answers questions; a missing key is an error."),
    of("BindAddress", Honoured, HOST),
    of("BindInterface", Honoured, HOST),
    of("CASignatureAlgorithms", Honoured, CIPHER),
    of("CanonicalDomains", Honoured, HOST),
    of("CanonicalizeFallbackLocal", Honoured, HOST),
    of("CanonicalizeHostname", Honoured, HOST),
    of("CanonicalizeMaxDots", Honoured, HOST),
    of("CanonicalizePermittedCNAMEs", Honoured, HOST),
    of("CertificateFile", Honoured, IDENTITY),
    since((9, 7), "ChannelTimeout", Overridden("none"), "A silent node must not lose its session."),
    of("CheckHostIP", Honoured, KEYS),
    of("Ciphers", Honoured, CIPHER),
    of("ClearAllForwardings", Overridden("yes"), FORWARDS),
    of("Compression", Honoured, "It is of use for slow links."),
    of("ConnectTimeout", Preset, "It is `ssh.answer_timeout`."),
    of("ConnectionAttempts", Honoured, HOST),
    of("ControlMaster", Overridden("no"), "A shared connection ends with its owner."),
    of("ControlPath", Overridden("none"), "A shared connection ends with its owner."),
    of("ControlPersist", Overridden("no"), "A connection must end with its node."),
    of("DynamicForward", ClearedBy("ClearAllForwardings"), FORWARDS),
    since((9, 2), "EnableEscapeCommandline", Harmless, "No escape character exists."),
    of("EnableSSHKeysign", Honoured, IDENTITY),
    of("EscapeChar", Overridden("none"), "Standard input is data."),
    of("ExitOnForwardFailure", ClearedBy("ClearAllForwardings"), FORWARDS),
    of("FingerprintHash", Harmless, "It changes messages alone."),
    since((8, 7), "ForkAfterAuthentication", Overridden("no"), "The process of ssh is the node's."),
    of("ForwardAgent", Overridden("no"), "A node needs no key of the user."),
    of("ForwardX11", Overridden("no"), "A node has no display."),
    of("ForwardX11Timeout", Harmless, UNUSED),
    of("ForwardX11Trusted", Harmless, UNUSED),
    of("GSSAPIAuthentication", Honoured, IDENTITY),
    of("GSSAPIClientIdentity", Honoured, IDENTITY),
    of("GSSAPIDelegateCredentials", Honoured, "A home directory may need them."),
    of("GSSAPIKexAlgorithms", Honoured, CIPHER),
    of("GSSAPIKeyExchange", Honoured, IDENTITY),
    of("GSSAPIRenewalForcesRekey", Honoured, IDENTITY),
    of("GSSAPIServerIdentity", Honoured, IDENTITY),
    of("GSSAPITrustDns", Honoured, IDENTITY),
    of("GatewayPorts", Harmless, UNUSED),
    of("GlobalKnownHostsFile", Honoured, KEYS),
    of("HashKnownHosts", Honoured, KEYS),
    of("Host", Honoured, SYNTAX),
    of("HostKeyAlgorithms", Honoured, CIPHER),
    of("HostKeyAlias", Honoured, KEYS),
    of("HostbasedAcceptedAlgorithms", Honoured, CIPHER),
    of("HostbasedAuthentication", Honoured, IDENTITY),
    of("Hostname", Honoured, HOST),
    of("IPQoS", Honoured, HOST),
    of("IdentitiesOnly", Honoured, IDENTITY),
    of("IdentityAgent", Honoured, IDENTITY),
    of("IdentityFile", Honoured, IDENTITY),
    of("IgnoreUnknown", Honoured, SYNTAX),
    of("Include", Honoured, SYNTAX),
    of("KbdInteractiveAuthentication", Harmless, PASSWORDS),
    of("KbdInteractiveDevices", Harmless, PASSWORDS),
    of("KexAlgorithms", Honoured, CIPHER),
    of("KnownHostsCommand", Honoured, KEYS),
    of("LocalCommand", ClearedBy("PermitLocalCommand"), "A connection runs the node alone."),
    of("LocalForward", ClearedBy("ClearAllForwardings"), FORWARDS),
    of("LogLevel", Preset, "It is INFO: errors name the reason of a failure."),
    of("LogVerbose", Harmless, "It changes messages alone."),
    of("MACs", Honoured, CIPHER),
    of("Match", Honoured, SYNTAX),
    of("NoHostAuthenticationForLocalhost", Honoured, KEYS),
    of("NumberOfPasswordPrompts", Harmless, PASSWORDS),
    since((9, 5), "ObscureKeystrokeTiming", Harmless, "It concerns terminals, which none has."),
    of("PKCS11Provider", Honoured, IDENTITY),
    of("PasswordAuthentication", Harmless, PASSWORDS),
    of("PermitLocalCommand", Overridden("no"), "A connection runs the node alone."),
    of("PermitRemoteOpen", Harmless, UNUSED),
    of("Port", Honoured, HOST),
    of("PreferredAuthentications", Honoured, IDENTITY),
    of("ProxyCommand", Honoured, HOST),
    of("ProxyJump", Honoured, HOST),
    of("ProxyUseFdpass", Honoured, HOST),
    of("PubkeyAcceptedAlgorithms", Honoured, CIPHER),
    of("PubkeyAuthentication", Honoured, IDENTITY),
    of("RekeyLimit", Honoured, CIPHER),
    of("RemoteCommand", Overridden("none"), "The command is that of the node."),
    of("RemoteForward", ClearedBy("ClearAllForwardings"), FORWARDS),
    of("RequestTTY", Overridden("no"), "A terminal would change the bytes of files."),
    of("RequiredRSASize", Honoured, CIPHER),
    of("RevokedHostKeys", Honoured, KEYS),
    of("SecurityKeyProvider", Honoured, IDENTITY),
    of("SendEnv", Honoured, "The node has the user's variables; those of `env` take precedence."),
    of("ServerAliveCountMax", Preset, "It is 3: a lost connection is noticed."),
    of("ServerAliveInterval", Preset, "It is 5 s: a lost connection is noticed."),
    since((8, 7), "SessionType", Overridden("default"), "The session is that of the node."),
    of("SetEnv", Honoured, "The node has the user's variables; those of `env` take precedence."),
    since((8, 7), "StdinNull", Overridden("no"), "Standard input is that of the node."),
    of("StreamLocalBindMask", Harmless, UNUSED),
    of("StreamLocalBindUnlink", Harmless, UNUSED),
    of("StrictHostKeyChecking", Honoured, KEYS),
    of("SyslogFacility", Harmless, "Messages go to standard error."),
    of("TCPKeepAlive", Honoured, HOST),
    since((9, 4), "Tag", Honoured, SYNTAX),
    of("Tunnel", Overridden("no"), FORWARDS),
    of("TunnelDevice", Harmless, UNUSED),
    of("UpdateHostKeys", Overridden("no"), "It may ask, and connections open side by side."),
    of("User", Honoured, HOST),
    of("UserKnownHostsFile", Honoured, KEYS),
    of("VerifyHostKeyDNS", Honoured, KEYS),
    of("VisualHostKey", Overridden("no"), "It fills the node's log."),
    of("XAuthLocation", Harmless, UNUSED),
];

/// The options that override a user's configuration, as arguments of `-o`. `version` is that of
/// ssh; without one, options that later versions brought are left out.
pub fn unattended_options(version: Option<(u32, u32)>) -> Vec<String> {
    let known =
        |directive: &&SshDirective| directive.since.is_none_or(|since| version >= Some(since));
    let of = |directive: &SshDirective| match directive.treatment {
        Overridden(value) => Some(format!("{}={value}", directive.name)),
        ClearedBy(_) | Preset | Honoured | Harmless => None,
    };
    SSH_DIRECTIVES.iter().filter(known).filter_map(of).collect()
}

/// The reason why a grid's config cannot set a directive of ssh, if so. Names have no case.
pub fn refused_option(name: &str) -> Option<String> {
    let directive = SSH_DIRECTIVES.iter().find(|known| known.name.eq_ignore_ascii_case(name))?;
    let SshDirective { name, reason, .. } = directive;
    match directive.treatment {
        Overridden(value) => {
            Some(format!("`ssh.options` cannot set {name}, which is always {value}. {reason}"))
        }
        ClearedBy(other) => {
            Some(format!("`ssh.options` cannot set {name}, which {other} clears. {reason}"))
        }
        Preset | Honoured | Harmless => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_ordered_and_refers_to_itself() {
        let mut names: Vec<_> = SSH_DIRECTIVES.iter().map(|directive| directive.name).collect();
        let listed = names.clone();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, listed);
        for directive in SSH_DIRECTIVES {
            if let ClearedBy(other) = directive.treatment {
                let other = SSH_DIRECTIVES.iter().find(|known| known.name == other).unwrap();
                assert!(matches!(other.treatment, Overridden(_)), "{}", directive.name);
            }
        }
        let (old, new) = (unattended_options(Some((8, 0))), unattended_options(Some((8, 7))));
        assert_eq!(unattended_options(None), old);
        assert!(
            !old.contains(&"StdinNull=no".to_owned()) && new.contains(&"StdinNull=no".to_owned())
        );
        assert!(refused_option("remotecommand").unwrap().contains("always none"));
        assert!(refused_option("LocalForward").is_some() && refused_option("Port").is_none());
    }

    /// The table has each directive of the manual page of this host.
    #[test]
    fn every_directive_of_the_manual_is_decided() {
        let page =
            std::process::Command::new("zcat").arg("/usr/share/man/man5/ssh_config.5.gz").output();
        let page = page.ok().filter(|page| page.status.success());
        let Some(page) = page.map(|page| String::from_utf8_lossy(&page.stdout).into_owned()) else {
            return println!("skipped: no manual page of ssh_config here");
        };
        let mut found = 0;
        for name in page.lines().filter_map(|line| line.strip_prefix(".It Cm ")) {
            let name = name.split_whitespace().next().unwrap_or_default();
            // Lower case: the values of a directive.
            if name.starts_with(char::is_uppercase) {
                found += 1;
                assert!(SSH_DIRECTIVES.iter().any(|known| known.name == name), "{name}");
            }
        }
        assert!(found > 60, "{found}");
    }
}
