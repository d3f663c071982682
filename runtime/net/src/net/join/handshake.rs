//! The state machine of the join protocol with one caller, without I/O.
//!
//! A caller sends one message and gets one reply. This module knows neither sockets nor the
//! validity of tokens.

use super::{JoinGrant, JoinReason, JoinRefusal, JoinRequest, NOT_GOOD, VERSION};

/// An input of the state machine.
#[derive(Debug)]
pub(super) enum HandshakeEvent {
    /// The caller's message: a request, or a description of its defect.
    Received(Result<JoinRequest, String>),
    /// The decision whether the caller may join.
    Judged(Result<JoinGrant, JoinRefusal>),
    /// The caller's time is over.
    Late,
    /// The connection was lost.
    Gone,
}

/// An output of the state machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandshakeAction {
    /// Ask the judge about the request.
    Judge(JoinRequest),
    /// Send this grant, then close.
    Grant(JoinGrant),
    /// Send a refusal with this text, then close.
    Refuse(String),
    /// Close without a reply.
    Close,
    /// Count an accepted caller.
    Granted,
    /// Count and log a refused caller.
    Refused(JoinRefusal),
}

#[derive(Debug, Default, PartialEq, Eq)]
enum HandshakeState {
    /// Waits for the caller's request.
    #[default]
    Listening,
    /// Waits for the decision.
    Judging,
    /// The reply is sent, or the caller is gone.
    Over,
}

/// The state of the join protocol with one caller.
#[derive(Debug, Default)]
pub(super) struct JoinHandshake(HandshakeState);

impl JoinHandshake {
    /// Processes an event and returns the actions. A late or unexpected event has none.
    pub fn handle(&mut self, event: HandshakeEvent) -> Vec<HandshakeAction> {
        match (&self.0, event) {
            (HandshakeState::Listening, HandshakeEvent::Received(Ok(request)))
                if request.version == VERSION =>
            {
                self.0 = HandshakeState::Judging;
                vec![HandshakeAction::Judge(request)]
            }
            (HandshakeState::Listening, HandshakeEvent::Received(Ok(request))) => {
                let why = format!(
                    "the caller speaks version {} of joining, this grid {VERSION}: bring both to \
                     one version of springtide",
                    request.version
                );
                self.end(JoinRefusal::open(JoinReason::Version, why))
            }
            (HandshakeState::Listening, HandshakeEvent::Received(Err(why))) => {
                self.end(JoinRefusal::closed(JoinReason::BadRequest, why))
            }
            (HandshakeState::Judging, HandshakeEvent::Judged(Ok(grant))) => {
                self.0 = HandshakeState::Over;
                vec![HandshakeAction::Granted, HandshakeAction::Grant(grant)]
            }
            (HandshakeState::Judging, HandshakeEvent::Judged(Err(refusal))) => self.end(refusal),
            (HandshakeState::Listening | HandshakeState::Judging, HandshakeEvent::Late) => {
                let what = match self.0 {
                    HandshakeState::Listening => "no complete request arrived in time",
                    _ => "the request was not decided in time",
                };
                self.0 = HandshakeState::Over;
                let refusal = JoinRefusal::closed(JoinReason::Late, what);
                vec![HandshakeAction::Refused(refusal), HandshakeAction::Close]
            }
            // A caller that disconnects silently has detected another grid than expected, or is a
            // probe.
            (HandshakeState::Listening, HandshakeEvent::Gone) => {
                self.0 = HandshakeState::Over;
                let why = "the caller disconnected before it sent a request";
                vec![HandshakeAction::Refused(JoinRefusal::closed(JoinReason::BadRequest, why))]
            }
            (HandshakeState::Judging, HandshakeEvent::Gone) => {
                self.0 = HandshakeState::Over;
                let why = "the caller disconnected before the decision";
                vec![HandshakeAction::Refused(JoinRefusal::closed(JoinReason::Late, why))]
            }
            // Each event is accepted once.
            (HandshakeState::Over, _)
            | (HandshakeState::Judging, HandshakeEvent::Received(_))
            | (HandshakeState::Listening, HandshakeEvent::Judged(_)) => Vec::new(),
        }
    }

    /// Whether the protocol has ended.
    #[cfg(test)]
    fn is_over(&self) -> bool {
        self.0 == HandshakeState::Over
    }

    fn end(&mut self, refusal: JoinRefusal) -> Vec<HandshakeAction> {
        self.0 = HandshakeState::Over;
        let text = refusal.text_for_caller.clone().unwrap_or_else(|| NOT_GOOD.to_owned());
        vec![HandshakeAction::Refused(refusal), HandshakeAction::Refuse(text)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: u16) -> JoinRequest {
        let (token, secret) = ("1".to_owned(), "s".to_owned());
        JoinRequest { version, token, secret, request: Vec::new(), node: None }
    }

    fn grant() -> JoinGrant {
        let [certificate, authority, config] = ["c", "a", ""].map(str::to_owned);
        JoinGrant { certificate, authority, config }
    }

    fn closed() -> JoinRefusal {
        JoinRefusal::closed(JoinReason::WrongSecret, "the secret of token 1 is another")
    }

    #[test]
    fn a_caller_sends_one_request_and_gets_one_reply() {
        let mut handshake = JoinHandshake::default();
        let judged = handshake.handle(HandshakeEvent::Received(Ok(request(VERSION))));
        assert_eq!(judged, [HandshakeAction::Judge(request(VERSION))]);
        assert_eq!(handshake.handle(HandshakeEvent::Received(Ok(request(VERSION)))), []);
        let granted = handshake.handle(HandshakeEvent::Judged(Ok(grant())));
        assert_eq!(granted, [HandshakeAction::Granted, HandshakeAction::Grant(grant())]);
        assert!(handshake.is_over());
        assert_eq!(handshake.handle(HandshakeEvent::Judged(Ok(grant()))), []);
    }

    #[test]
    fn a_caller_without_a_valid_token_learns_nothing() {
        let reasons = [
            JoinReason::UnknownToken,
            JoinReason::WrongSecret,
            JoinReason::ExpiredToken,
            JoinReason::UsedUpToken,
            JoinReason::RevokedToken,
        ];
        for reason in reasons {
            let mut handshake = JoinHandshake::default();
            handshake.handle(HandshakeEvent::Received(Ok(request(VERSION))));
            let refusal = JoinRefusal::closed(reason, "the log's own words");
            let actions = handshake.handle(HandshakeEvent::Judged(Err(refusal.clone())));
            let told = HandshakeAction::Refuse(NOT_GOOD.to_owned());
            assert_eq!(actions, [HandshakeAction::Refused(refusal), told]);
        }
    }

    /// Any order of events leads to at most one decision, one count and one reply, and to nothing
    /// after the end.
    #[test]
    fn each_order_of_events_ends_correctly() {
        let make: [fn() -> HandshakeEvent; 7] = [
            || HandshakeEvent::Received(Ok(request(VERSION))),
            || HandshakeEvent::Received(Ok(request(VERSION + 1))),
            || HandshakeEvent::Received(Err("garbage".to_owned())),
            || HandshakeEvent::Judged(Ok(grant())),
            || HandshakeEvent::Judged(Err(closed())),
            || HandshakeEvent::Late,
            || HandshakeEvent::Gone,
        ];
        let (mut granted, mut refused, mut closed_silently) = (0, 0, 0);
        for order in 0..7usize.pow(4) {
            let mut handshake = JoinHandshake::default();
            let mut actions = Vec::new();
            for step in 0..4u32 {
                let was_over = handshake.is_over();
                let new = handshake.handle(make[order / 7usize.pow(step) % 7]());
                assert!(!was_over || new.is_empty(), "{new:?}");
                actions.extend(new);
            }
            let count =
                |wanted: fn(&HandshakeAction) -> bool| actions.iter().filter(|a| wanted(a)).count();
            let judged = count(|a| matches!(a, HandshakeAction::Judge(_)));
            let answers = count(|a| {
                matches!(
                    a,
                    HandshakeAction::Grant(_) | HandshakeAction::Refuse(_) | HandshakeAction::Close
                )
            });
            let counted =
                count(|a| matches!(a, HandshakeAction::Granted | HandshakeAction::Refused(_)));
            assert!(judged <= 1 && answers <= 1 && counted <= 1, "{actions:?}");
            assert_eq!(counted, usize::from(handshake.is_over()), "{actions:?}");
            let grants = count(|a| matches!(a, HandshakeAction::Grant(_)));
            assert!(grants <= judged, "granted without a judgement");
            (granted, refused) = (granted + grants, refused + counted - grants);
            closed_silently += count(|a| matches!(a, HandshakeAction::Close));
        }
        assert!(granted > 0 && refused > 0 && closed_silently > 0);
    }
}
