//! Remedies of the events of a pair.

pub const TAKEOVER_REMEDY: &str = "remove the cause: it is then taken over automatically; see \
                                   docs/guide/pair.md#what-can-go-wrong";

pub const NOT_SERVED_REMEDY: &str = "nothing has to be done if the partner serves it: `forebay status` at both \
                                     shows the state; see docs/guide/pair.md";

pub const HANDOVER_REMEDY: &str = "repeat `forebay gateway takeover` when `forebay status` shows that both legs \
                                   of the log are in sync";

pub const PARTNER_REMEDY: &str = "start the partner, or repair the link between both; `forebay status` shows the state of the pair";

pub const FILL_REMEDY: &str = "nothing has to be done unless it lasts: then see `forebay status` and the events \
                               at the partner";

pub const CLOSED_REMEDY: &str =
    "nothing has to be done: the gateway that serves the unit next recovers them from the log";
