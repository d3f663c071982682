//! The state machine of the join protocol with one caller, without I/O.
//!
//! A caller sends one message and gets one reply. Independent of sockets and of the validity of
//! tokens.

use super::{JoinGrant, JoinReason, JoinRefusal, JoinRequest, NOT_GOOD, VERSION};

/// An input of the state machine.
#[derive(Debug)]
pub(super) enum Event {
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
pub(super) enum Action {
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
enum State {
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
pub(super) struct JoinHandshake(State);

impl JoinHandshake {
    /// Processes an event and returns the actions. A late or unexpected event has none.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match (&self.0, event) {
            (State::Listening, Event::Received(Ok(request))) if request.version == VERSION => {
                self.0 = State::Judging;
                vec![Action::Judge(request)]
            }
            (State::Listening, Event::Received(Ok(request))) => {
                let why = format!(
                    "the caller speaks version {} of joining, this grid {VERSION}: bring both to \
                     one version of springtide",
                    request.version
                );
                self.end(JoinRefusal::open(JoinReason::Version, why))
            }
            (State::Listening, Event::Received(Err(why))) => {
                self.end(JoinRefusal::closed(JoinReason::BadRequest, why))
            }
            (State::Judging, Event::Judged(Ok(grant))) => {
                self.0 = State::Over;
                vec![Action::Granted, Action::Grant(grant)]
            }
            (State::Judging, Event::Judged(Err(refusal))) => self.end(refusal),
            (State::Listening | State::Judging, Event::Late) => {
                let what = match self.0 {
                    State::Listening => "no complete request arrived in time",
                    _ => "the request was not decided in time",
                };
                self.0 = State::Over;
                let refusal = JoinRefusal::closed(JoinReason::Late, what);
                vec![Action::Refused(refusal), Action::Close]
            }
            // A caller that disconnects silently has detected another grid than expected, or is a
            // probe.
            (State::Listening, Event::Gone) => {
                self.0 = State::Over;
                let why = "the caller disconnected before it sent a request";
                vec![Action::Refused(JoinRefusal::closed(JoinReason::BadRequest, why))]
            }
            (State::Judging, Event::Gone) => {
                self.0 = State::Over;
                let why = "the caller disconnected before the decision";
                vec![Action::Refused(JoinRefusal::closed(JoinReason::Late, why))]
            }
            // Each event is accepted once.
            (State::Over, _)
            | (State::Judging, Event::Received(_))
            | (State::Listening, Event::Judged(_)) => Vec::new(),
        }
    }

    /// Whether the protocol has ended.
    #[cfg(test)]
    fn is_over(&self) -> bool {
        self.0 == State::Over
    }

    fn end(&mut self, refusal: JoinRefusal) -> Vec<Action> {
        self.0 = State::Over;
        let text = refusal.told.clone().unwrap_or_else(|| NOT_GOOD.to_owned());
        vec![Action::Refused(refusal), Action::Refuse(text)]
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
        let judged = handshake.handle(Event::Received(Ok(request(VERSION))));
        assert_eq!(judged, [Action::Judge(request(VERSION))]);
        assert_eq!(handshake.handle(Event::Received(Ok(request(VERSION)))), []);
        let granted = handshake.handle(Event::Judged(Ok(grant())));
        assert_eq!(granted, [Action::Granted, Action::Grant(grant())]);
        assert!(handshake.is_over());
        assert_eq!(handshake.handle(Event::Judged(Ok(grant()))), []);
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
            handshake.handle(Event::Received(Ok(request(VERSION))));
            let refusal = JoinRefusal::closed(reason, "the log's own words");
            let actions = handshake.handle(Event::Judged(Err(refusal.clone())));
            let told = Action::Refuse(NOT_GOOD.to_owned());
            assert_eq!(actions, [Action::Refused(refusal), told]);
        }
    }

    /// Any order of events leads to at most one decision, one count and one reply, and to nothing
    /// after the end.
    #[test]
    fn each_order_of_events_ends_correctly() {
        let make: [fn() -> Event; 7] = [
            || Event::Received(Ok(request(VERSION))),
            || Event::Received(Ok(request(VERSION + 1))),
            || Event::Received(Err("garbage".to_owned())),
            || Event::Judged(Ok(grant())),
            || Event::Judged(Err(closed())),
            || Event::Late,
            || Event::Gone,
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
            let count = |wanted: fn(&Action) -> bool| actions.iter().filter(|a| wanted(a)).count();
            let judged = count(|a| matches!(a, Action::Judge(_)));
            let answers =
                count(|a| matches!(a, Action::Grant(_) | Action::Refuse(_) | Action::Close));
            let counted = count(|a| matches!(a, Action::Granted | Action::Refused(_)));
            assert!(judged <= 1 && answers <= 1 && counted <= 1, "{actions:?}");
            assert_eq!(counted, usize::from(handshake.is_over()), "{actions:?}");
            let grants = count(|a| matches!(a, Action::Grant(_)));
            assert!(grants <= judged, "granted without a judgement");
            (granted, refused) = (granted + grants, refused + counted - grants);
            closed_silently += count(|a| matches!(a, Action::Close));
        }
        assert!(granted > 0 && refused > 0 && closed_silently > 0);
    }
}
