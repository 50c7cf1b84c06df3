// SPDX-License-Identifier: Apache-2.0
//
// Keeps the page up to date: the server tells that something has changed, and the content of the same address is
// fetched and put in place. Without JavaScript the page is the same, and is loaded anew from time to time.
"use strict";
(() => {
  const live = document.getElementById("live");
  const content = () => document.getElementById("main");
  let loading = false, again = false;

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
    if (isEdited(content())) return;
    loading = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("main");
      const main = content();
      if (answer.ok && next && !isEdited(main)) {
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
  let first = true;
  events.addEventListener("open", () => { live.textContent = "live"; });
  events.addEventListener("change", () => {
    // The first one tells the state that the page was made from, unless the stream was interrupted.
    if (!first) refresh();
    first = false;
  });
  events.addEventListener("error", () => { if (events.readyState === EventSource.CLOSED) live.textContent = "not live"; });
})();
