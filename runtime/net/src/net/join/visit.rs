//! One caller at the door, from its connection to its end: what is done about what happens, without I/O.
//!
//! A caller may say one thing, and gets one answer. Must not know sockets, nor what makes a token good.

use super::{JoinGrant, JoinReason, JoinRefusal, JoinRequest, NOT_GOOD, VERSION};

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// It has said this; or what it said is no request.
    Said(Result<JoinRequest, String>),
    /// Whether it may join.
    Judged(Result<JoinGrant, JoinRefusal>),
    /// It has had its time.
    Late,
    /// Its connection is gone.
    Gone,
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Let the request be judged.
    Judge(JoinRequest),
    /// Give it this, and end.
    Grant(JoinGrant),
    /// Tell it no in these words, and end.
    Refuse(String),
    /// End without a word.
    Hang,
    /// Count that it joined.
    Granted,
    /// Count that it did not, and say so in the log.
    Refused(JoinRefusal),
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// It is to say what it wants.
    #[default]
    Listening,
    /// That is being judged.
    Judging,
    /// It has its answer, or is gone.
    Over,
}

/// A caller.
#[derive(Debug, Default)]
pub(super) struct Visit(State);

impl Visit {
    /// What is to be done now. An event that is too late, or makes no sense, leads to nothing.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match (&self.0, event) {
            (State::Listening, Event::Said(Ok(request))) if request.version == VERSION => {
                self.0 = State::Judging;
                vec![Action::Judge(request)]
            }
            (State::Listening, Event::Said(Ok(request))) => {
                let why = format!(
                    "the caller speaks version {} of joining, this grid {VERSION}: bring both to one version of springtide",
                    request.version
                );
                self.end(JoinRefusal::open(JoinReason::Version, why))
            }
            (State::Listening, Event::Said(Err(why))) => {
                self.end(JoinRefusal::closed(JoinReason::BadRequest, why))
            }
            (State::Judging, Event::Judged(Ok(grant))) => {
                self.0 = State::Over;
                vec![Action::Granted, Action::Grant(grant)]
            }
            (State::Judging, Event::Judged(Err(refusal))) => self.end(refusal),
            (State::Listening | State::Judging, Event::Late) => {
                let what = match self.0 {
                    State::Listening => "no whole request came in time",
                    _ => "it could not be judged in time",
                };
                self.0 = State::Over;
                let refusal = JoinRefusal::closed(JoinReason::Late, what);
                vec![Action::Refused(refusal), Action::Hang]
            }
            // Whoever goes away without a word has seen that this is not the grid that it looked for, or is a probe.
            (State::Listening, Event::Gone) => {
                self.0 = State::Over;
                let why = "the caller went away before it said anything";
                vec![Action::Refused(JoinRefusal::closed(JoinReason::BadRequest, why))]
            }
            (State::Judging, Event::Gone) => {
                self.0 = State::Over;
                let why = "the caller went away while it was judged";
                vec![Action::Refused(JoinRefusal::closed(JoinReason::Late, why))]
            }
            // Nothing can be said twice.
            (State::Over, _)
            | (State::Judging, Event::Said(_))
            | (State::Listening, Event::Judged(_)) => Vec::new(),
        }
    }

    /// Whether nothing more can come of it.
    #[cfg(test)]
    fn is_over(&self) -> bool {
        self.0 == State::Over
    }

    fn end(&mut self, refusal: JoinRefusal) -> Vec<Action> {
        self.0 = State::Over;
        let told = refusal.told.clone().unwrap_or_else(|| NOT_GOOD.to_owned());
        vec![Action::Refused(refusal), Action::Refuse(told)]
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
    fn a_caller_says_one_thing_and_gets_one_answer() {
        let mut visit = Visit::default();
        let judged = visit.handle(Event::Said(Ok(request(VERSION))));
        assert_eq!(judged, [Action::Judge(request(VERSION))]);
        assert_eq!(visit.handle(Event::Said(Ok(request(VERSION)))), []);
        let granted = visit.handle(Event::Judged(Ok(grant())));
        assert_eq!(granted, [Action::Granted, Action::Grant(grant())]);
        assert!(visit.is_over());
        assert_eq!(visit.handle(Event::Judged(Ok(grant()))), []);
    }

    #[test]
    fn whoever_has_no_good_token_learns_nothing() {
        let reasons = [
            JoinReason::UnknownToken,
            JoinReason::WrongSecret,
            JoinReason::ExpiredToken,
            JoinReason::UsedUpToken,
            JoinReason::RevokedToken,
        ];
        for reason in reasons {
            let mut visit = Visit::default();
            visit.handle(Event::Said(Ok(request(VERSION))));
            let refusal = JoinRefusal::closed(reason, "the log's own words");
            let actions = visit.handle(Event::Judged(Err(refusal.clone())));
            let told = Action::Refuse(NOT_GOOD.to_owned());
            assert_eq!(actions, [Action::Refused(refusal), told]);
        }
    }

    /// Whatever comes in whatever order: at most one judgement, one count and one answer, and nothing after the end.
    #[test]
    fn every_order_of_events_ends_well() {
        let make: [fn() -> Event; 7] = [
            || Event::Said(Ok(request(VERSION))),
            || Event::Said(Ok(request(VERSION + 1))),
            || Event::Said(Err("garbage".to_owned())),
            || Event::Judged(Ok(grant())),
            || Event::Judged(Err(closed())),
            || Event::Late,
            || Event::Gone,
        ];
        let (mut granted, mut refused, mut hung) = (0, 0, 0);
        for order in 0..7usize.pow(4) {
            let mut visit = Visit::default();
            let mut actions = Vec::new();
            for step in 0..4u32 {
                let was_over = visit.is_over();
                let new = visit.handle(make[order / 7usize.pow(step) % 7]());
                assert!(!was_over || new.is_empty(), "{new:?}");
                actions.extend(new);
            }
            let count = |wanted: fn(&Action) -> bool| actions.iter().filter(|a| wanted(a)).count();
            let judged = count(|a| matches!(a, Action::Judge(_)));
            let answers =
                count(|a| matches!(a, Action::Grant(_) | Action::Refuse(_) | Action::Hang));
            let counted = count(|a| matches!(a, Action::Granted | Action::Refused(_)));
            assert!(judged <= 1 && answers <= 1 && counted <= 1, "{actions:?}");
            assert_eq!(counted, usize::from(visit.is_over()), "{actions:?}");
            let grants = count(|a| matches!(a, Action::Grant(_)));
            assert!(grants <= judged, "granted without a judgement");
            (granted, refused) = (granted + grants, refused + counted - grants);
            hung += count(|a| matches!(a, Action::Hang));
        }
        assert!(granted > 0 && refused > 0 && hung > 0);
    }
}
