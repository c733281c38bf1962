//! Converts errors of a link to failures with a remedy.

use control::Failure;
use wan::Error;

pub fn failed(error: Error) -> Failure {
    let failure = match &error {
        Error::Settings(_) | Error::Name(_) => Failure::settings(&error),
        _ => Failure::new(&error),
    };
    match &error {
        Error::Privilege => failure.remedy(
            "be root; without privilege `forebay quickstart` shows distance by a relay, without loss",
        ),
        Error::NoTun(_) => failure.remedy(
            "load the driver: modprobe tun (in a container: --device /dev/net/tun --cap-add NET_ADMIN \
             --cap-add SYS_ADMIN)",
        ),
        Error::NoIp | Error::NoTc => failure.remedy("install iproute2"),
        Error::NoNetem(_) => failure.remedy(
            "leave --netem out: the emulator needs none; or load it where the kernel has it as a module: modprobe sch_netem",
        ),
        Error::InUse { .. } => failure.remedy("stop that one, or give this one another --name"),
        Error::Foreign { namespace } => failure.remedy(format!(
            "give this one another --name, or remove it if it is not needed: ip netns delete {namespace}"
        )),
        _ => failure,
    }
}
