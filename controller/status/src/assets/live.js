// SPDX-License-Identifier: Apache-2.0
//
// Keeps the page up to date: the server tells that something has changed, and the content of the same address is
// fetched and put in place. Without JavaScript the page is the same, and is loaded anew from time to time.
"use strict";
(() => {
  const live = document.getElementById("live");
  const content = () => document.getElementById("main");
  let loading = false, again = false, late = false;

  // The element of the new content that stands for the one that has the focus.
  const counterpart = (old, main) => {
    if (!old || old === main || !main.contains(old)) return () => null;
    const index = [...main.querySelectorAll("a, button, [tabindex]")].indexOf(old);
    return (next) => [...next.querySelectorAll("a, button, [tabindex]")][index] || null;
  };

  const isEdited = (main) => {
    const at = document.activeElement;
    return main.contains(at) && (at.matches("input, select"));
  };

  const refresh = async () => {
    if (loading) { again = true; return; }
    // What is typed would be lost: the refresh is put off until the field loses the focus.
    late = isEdited(content());
    if (late) return;
    loading = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("main");
      const main = content();
      late = isEdited(main);
      // A page that tells of an error is the answer too.
      if (!next) {
        live.textContent = "no answer";
      } else if (!late) {
        const find = counterpart(document.activeElement, main);
        main.replaceChildren(...next.childNodes);
        find(main)?.focus({ preventScroll: true });
        live.textContent = "live";
      }
    } catch {
      live.textContent = "no answer";
    } finally {
      loading = false;
      if (again) { again = false; refresh(); }
    }
  };

  const events = new EventSource("/status/events");
  events.addEventListener("open", () => { live.textContent = "live"; });
  let first = true;
  events.addEventListener("change", (event) => {
    // The first one tells the state that the page was made from, unless it has changed until the subscription.
    if (!first || event.data !== content().dataset.digest) refresh();
    first = false;
  });
  // The field that gets the focus has it after the event.
  document.addEventListener("focusout", () => setTimeout(() => { if (late) refresh(); }));
  events.addEventListener("error", () => { if (events.readyState === EventSource.CLOSED) live.textContent = "not live"; });
})();
