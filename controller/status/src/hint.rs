// SPDX-License-Identifier: Apache-2.0

//! Pages without anything of the cluster: the hint for browsers that are not admitted, and errors.

use maud::{DOCTYPE, Markup, html};

use crate::layout::{Frame, Tab, page};

/// The page for browsers that are not admitted. It says how to be, and nothing else.
#[must_use]
pub fn hint(reason: &str) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Portolan" }
            }
            body {
                main {
                    h1 { "Portolan" }
                    p { "The status page is not shown here: " (reason) "." }
                    p { "Open it on the machine of the controller, or through a forwarded port:" }
                    pre { "kubectl -n kube-system port-forward deployment/portolan-controller 9444\n"
                        "ssh -L 9444:127.0.0.1:9444 HOST" }
                    p { "Then visit http://localhost:9444/status/" }
                }
            }
        }
    };
    page.into_string()
}

/// A page that says why there is no answer.
#[must_use]
pub fn error(frame: &Frame, tab: Tab, message: &str) -> Markup {
    page(frame, tab, "No answer", &html! { p.bad { (message) } })
}
