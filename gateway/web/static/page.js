// The scripts of every page. Without JavaScript everything but live updates works, too.
"use strict";

// Ages grow by the time since the page was loaded, so that the viewer's clock does not matter.
(() => {
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const said = new WeakMap();

  function seconds(text) {
    const [count, unit] = text.split(" ");
    const found = units.find(([, name]) => unit && unit.startsWith(name));
    return found ? Number(count) * found[0] : 0;
  }

  function words(age) {
    for (const [size, name] of units) {
      const count = Math.floor(age / size);
      if (count >= 1) return `${count} ${name}${count === 1 ? "" : "s"} ago`;
    }
    return "just now";
  }

  function tick() {
    const now = performance.now() / 1000;
    for (const age of document.querySelectorAll(".age[data-at]")) {
      if (!said.has(age)) said.set(age, now - seconds(age.textContent));
      else age.textContent = words(now - said.get(age));
    }
  }

  document.addEventListener("DOMContentLoaded", tick);
  document.addEventListener("htmx:load", tick);
  setInterval(tick, 15000);
})();

// Adds the viewer's local time to each time, also to those that arrive later. Without this script, UTC stands alone.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const parts = new Intl.DateTimeFormat("en-GB", {
    ...{ year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" },
    timeZoneName: "longOffset",
  });

  function local(time) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime()) || time.querySelector(".local")) return;
    const read = Object.fromEntries(parts.formatToParts(moment).map(({ type, value }) => [type, value]));
    const offset = read.timeZoneName.replace("GMT", "UTC").replace(":00", "");
    if (/^UTC([+-]00)?$/.test(offset)) return;
    const day = `${read.year}-${read.month}-${read.day}`;
    const clock = `${read.hour}:${read.minute}:${read.second} ${offset}`;
    const shown = document.createElement("span");
    shown.className = "local";
    shown.title = zone;
    shown.textContent = `(${time.dateTime.startsWith(day) ? clock : `${day} ${clock}`})`;
    // The local time may begin a line, but neither time is broken.
    const gap = document.createElement("span");
    gap.className = "gap";
    gap.textContent = " ";
    time.append(gap, shown);
  }

  function within(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    if (node.matches("time[datetime]")) local(node);
    else node.querySelectorAll("time[datetime]").forEach(local);
  }

  document.addEventListener("DOMContentLoaded", () => {
    within(document.body);
    const watch = new MutationObserver((changes) => changes.forEach(({ addedNodes }) => addedNodes.forEach(within)));
    watch.observe(document.body, { childList: true, subtree: true });
  });
})();

// Switches between light, dark and the system's theme without reloading the page.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form.theme")) return;
  event.preventDefault();
  const theme = event.submitter.value;
  const body = new URLSearchParams({ theme, next: "/ui/" });
  await fetch(form.action, { method: "POST", body, redirect: "manual" });
  document.documentElement.dataset.theme = theme;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === theme));
  }
});

// The address of a filtered list has only the filters that are set.
document.addEventListener("htmx:configRequest", (event) => {
  if (!event.target.matches("form.filters")) return;
  const { parameters } = event.detail;
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
});

// A part that refreshes itself pauses while a viewer uses it, and while the page is hidden.
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.target;
  if (!part.matches("[data-refresh]")) return;
  const busy = part.querySelector("details[open]") || part.contains(document.activeElement) || document.hidden;
  if (busy) event.preventDefault();
});
